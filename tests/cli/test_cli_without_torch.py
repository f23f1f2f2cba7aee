"""Commands that read a run import neither torch nor pandas: that takes longer than most of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.commands import healthy, write_run

SCRIPT = """
import json
import sys
from hookstats.cli import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 0
    assert not {"pandas", "torch"} & sys.modules.keys(), command
"""


def test_a_finished_run_is_read_without_torch_or_pandas(tmp_path: Path) -> None:
    # It has histograms, and ends in an explosion.
    changes = [{("head", "output"): 10.0 ** max(0, step - 10)} for step in range(14)]
    run = str(write_run(tmp_path / "run", *map(healthy, range(14), changes)))
    commands = [
        ["ls", str(tmp_path)],
        ["show", run],
        ["top", run, "--once"],
        ["compare", run, run],
        ["report", run, "-o", str(tmp_path / "page.html")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr[-400:]) == (0, "")
