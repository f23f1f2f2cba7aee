"""However a program ends, its run is closed, and one line says what it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.paths import python_path
from torch import nn

from hookstats.hooks.coverage import Coverage, SiteCoverage
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch

SCRIPT = """
import os, sys
import torch, hookstats as hs
from torch import nn

model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = hs.watch(model, optimizer, out="runs/a", every=1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()

"""
NO_LOSS = "; no loss logged: hookstats show runs/a"
FIVE = "hookstats: runs/a: 5 steps, 7 tensors, no incidents"


def ended(folder: Path, end: str) -> tuple[int, list[str]]:
    """The exit code and the last lines on stderr of a script that ends so."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("end", "code", "steps", "line"),
    [
        ("train(5)", 0, 5, FIVE + NO_LOSS),
        pytest.param(
            "watch.log(loss=1.0); train(5); raise ValueError",
            *(1, 5, FIVE + ": hookstats show runs/a"),
            marks=pytest.mark.check,
        ),
        pytest.param(
            "train(5)\nif os.fork() == 0: train(1); sys.exit()\nos.wait(); sys.exit(3)",
            *(3, 5, FIVE + NO_LOSS),
            marks=pytest.mark.check,
        ),
        pytest.param(
            "watch.set_step(40); train(5)", *(0, 5, FIVE + NO_LOSS), marks=pytest.mark.check
        ),
        pytest.param(
            "watch.set_step(1)",
            *(0, 0, "hookstats: runs/a: 0 steps, 0 tensors, no incidents; no step was closed; "),
            marks=pytest.mark.check,
        ),
        pytest.param(
            "raise SystemExit",
            *(0, 0, "hookstats: runs/a: 0 steps, 0 tensors, no incidents; no step was closed; "),
            marks=pytest.mark.check,
        ),
    ],
    ids=[
        "at its last line",
        "an error",
        "an exit, and a fork",
        "numbers of its own",
        "numbers of its own, and no step",
        "without a step",
    ],
)
def test_a_run_is_closed_when_the_program_ends(
    end: str, code: int, steps: int, line: str, tmp_path: Path
) -> None:
    returned, lines = ended(tmp_path, end)
    assert returned == code, lines
    assert [one for one in lines if one.startswith("hookstats: runs/a: ")] == lines[-1:]
    assert lines[-1].startswith(line)
    run = open_run(tmp_path / "runs" / "a")
    assert len(run.steps) == steps
    assert run.closed
    assert run.coverage is not None


def test_what_was_not_seen() -> None:
    def row(name: str, kind: str, forwards: int) -> SiteCoverage:
        return SiteCoverage(name, kind, forwards, forwards, {}, 0, 0, None)

    rows = row("a", "output[1]", 0), row("a", "grad_output", 2), row("b", "output", 0)
    coverage = Coverage((*rows, row("c", "input", 0), row("w", "param_grad", 0)), 1200, 0, 0, {})
    seen = "1,200 steps, 1 tensor"
    assert coverage.summary([], has_loss=True) == f"{seen}, no incidents; 2 modules never called"
    assert coverage.summary(None, has_loss=False).endswith("called; no loss logged")


def test_a_run_that_is_closed_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(3, 2)
    w = watch(model, out=tmp_path, rules=())
    model(torch.randn(2, 3)).sum().backward()
    w.log(train_loss=1.0)
    w.step()
    w.close()
    w.close()
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "hookstats show" in one]
    assert line == f"hookstats: {tmp_path}: 1 step, 5 tensors: hookstats show {tmp_path}"


def test_nothing_is_said_of_a_run_that_could_not_be_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Another directory has its name: there, `hookstats show` would show something else."""
    model = nn.Linear(4, 2)
    w = watch(model, out=tmp_path / "a", every=1)
    model(torch.randn(3, 4)).sum().backward()
    w.step()
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    w.close()
    assert "another directory has taken the place" in caplog.text
    assert "hookstats show" not in capsys.readouterr().err
