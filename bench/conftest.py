"""What all benchmarks share: the machine they ran on, and the tables at the end."""

from __future__ import annotations

from functools import cache

import cpuinfo
import pytest
import torch
from report import NOTE, Report

import hookstats  # noqa: F401  (it registers torch.ops.hookstats)

_REPORT = pytest.StashKey[Report]()


@cache
def _machine() -> dict[str, str | int]:
    return {
        "cpu": cpuinfo.get_cpu_info().get("brand_raw", "unknown"),
        "instruction_set": torch.ops.hookstats.cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


@pytest.fixture(scope="session")
def machine() -> dict[str, str | int]:
    """What a time depends on besides the code, for extra_info."""
    return _machine()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """The tables that are printed at the end of the run."""
    return pytestconfig.stash.setdefault(_REPORT, Report())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    report = config.stash.get(_REPORT, None)
    if report is None:
        return
    terminalreporter.section("hookstats benchmarks")
    machine = _machine()
    terminalreporter.write_line(
        "{cpu}, {threads} threads, {instruction_set}, torch {torch}".format(**machine)
    )
    terminalreporter.write_line(NOTE)
    for line in report.lines():
        terminalreporter.write_line(line)
