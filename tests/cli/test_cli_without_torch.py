"""Commands that read a run import neither torch nor pandas: that takes longer than most of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import healthy, write_run

SCRIPT = """
import json
import sys
from hookstats.cli import main
commands, heavy = json.loads(sys.argv[1])
for command in commands:
    assert main(command) == 0
    assert not {*heavy} & sys.modules.keys(), command
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.check)])
def test_a_finished_run_is_read_without_torch_or_pandas(ranks: int, tmp_path: Path) -> None:
    # It has histograms, and ends in an explosion.
    changes = [{("head", "output"): 10.0 ** max(0, step - 10)} for step in range(14)]
    for rank in range(ranks):
        records = [healthy(step, changes[step], rank) for step in range(14)]
        run = str(write_run(tmp_path / "run", *records, rank=rank))
    commands = [
        ["ls", str(tmp_path)],
        ["show", run],
        ["show", run, "--layer", "head", "--kind", "output"],
        ["top", run, "--once"],
        ["compare", run, run],
        ["report", run, "-o", str(tmp_path / "page.html")],
    ]
    # Ranks that are merged are encoded anew by pyarrow.array, which imports pandas.
    heavy = ["torch"] if ranks > 1 else ["torch", "pandas"]
    check(SCRIPT, json.dumps([commands, heavy]))


SERIES = """
import sys
import hookstats as hs
series = hs.open_run(sys.argv[1]).series("head", "output")["head", "output"]
assert len(series.rms) == len(series.channels.rms) == 3
assert not {"pandas", "torch"} & sys.modules.keys()
"""


def test_a_series_is_read_without_torch_or_pandas(tmp_path: Path) -> None:
    check(SERIES, str(write_run(tmp_path / "run", *map(healthy, range(3)))))


def check(script: str, argument: str) -> None:
    """Run a script with an argument in a process of its own; nothing may go wrong."""
    command = [sys.executable, "-c", script, argument]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr[-400:]) == (0, "")
