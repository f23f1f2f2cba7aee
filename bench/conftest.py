"""What all benchmarks share: the results, printed as tables and written as JSON at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.machine import machine
from bench.measured import Results
from bench.report import text
from bench.smoke import SMOKE

_RESULTS = pytest.StashKey[Results]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--results",
        type=Path,
        help="write what was measured to this JSON file; tables of other benchmarks in it stay",
    )


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> Results:
    """Where every measured case goes."""
    return pytestconfig.stash.setdefault(_RESULTS, Results(machine()))


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random tensors in every run."""
    torch.manual_seed(0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    results = config.stash.get(_RESULTS, None)
    if results is None or SMOKE:
        return
    terminalreporter.section("hookstats benchmarks")
    terminalreporter.write_line(text(results))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the results, of an interrupted run, too."""
    results, path = config.stash.get(_RESULTS, None), config.getoption("results", None)
    if results is not None and path is not None:
        if path.exists():
            results = Results.load(path).merge(results)
        results.save(path)
