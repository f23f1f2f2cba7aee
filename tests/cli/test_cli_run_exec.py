"""hookstats run: a script that becomes another program, by os.exec."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run

from hookstats.runs.run import open_run

BECOMES = """
import os, sys, torch

def train(steps):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()

if len(sys.argv) == 1:
    train(2)
    os.execv(sys.executable, [sys.executable, *sys.argv, "anew"])
train(3)
try:
    os.execlp("no-such-program", "python", "other.py")
except FileNotFoundError:
    os.execl("/bin/sh", "sh", "other.sh")
"""


@pytest.mark.check
def test_a_script_that_becomes_another_program(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(BECOMES)
    (script.parent / "other.sh").write_text("exit 7")
    code, errors = run(script, "training.py")
    assert code == 7, errors
    assert [line for line in errors.splitlines() if line.startswith("hookstats run")] == [
        "hookstats run: 2 steps in runs/training: hookstats show runs/training",
        "hookstats run: 3 steps in runs/training-1: hookstats show runs/training-1",
        "hookstats run: not followed: sh other.sh",
    ]
    runs = [open_run(script.parent / "runs" / name) for name in ("training", "training-1")]
    assert [len(one) for one in runs] == [2, 3]
    assert all(one.closed for one in runs)
