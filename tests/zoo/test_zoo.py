"""Programs of all kinds keep their results under `hookstats run`, and no rule speaks of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

SAMPLE = ("digits", "word-model-by-hand", "gan", "greedy-layers", "waves-by-lbfgs", "diffusion")


def zoo(*names: str) -> tuple[int, str]:
    """The exit code and the table."""
    done = subprocess.run(
        [sys.executable, "-m", "zoo", *names],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.check
def test_a_sample_of_the_zoo() -> None:
    code, table = zoo(*SAMPLE)
    assert code == 0, table
    assert table.count("| equal |") == len(SAMPLE)


@pytest.mark.full
def test_the_zoo() -> None:
    code, table = zoo()
    assert code == 0, table


def test_the_documentation_has_a_row_for_each_program() -> None:
    script = Path(__file__).with_name("programs.py").read_text()
    programs = re.findall(r"@program\ndef (\w+)", script)
    table = (ROOT / "docs" / "hazards.md").read_text()
    rows = re.findall(r"^\| ([a-z-]+) \| equal \|", table, re.M)
    assert rows == [name.replace("_", "-") for name in programs]
