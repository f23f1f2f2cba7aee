"""hookstats demo: records a real training run; the rules find the planted fault, and it alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call

from hookstats import open_run
from hookstats.cli import training as demo

pytestmark = pytest.mark.check


def test_the_planted_fault_is_found_and_the_report_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("demo", "--epochs", 2)
    assert result.code == 0
    (warned,) = [line for line in result.err.splitlines() if "warning" in line]
    assert warned.startswith("hookstats: warning: dead channels: step ")
    assert "step 47" in result.words
    (cause,) = result.words[result.words.index("1 warning:") + 1 :][:1]
    assert cause.startswith("warning: dead channels: step ")
    assert "output of 'block2.relu' has 24 dead channels of 32" in cause
    assert "; what helps: lower the learning rate" in cause
    assert f"most biases of '{demo.BAD_LAYER}' are -20" in result.out
    assert "report: runs/demo.html" in result.words
    assert Path("runs/demo.html").read_text().startswith("<!doctype html>")
    assert open_run("runs/demo").steps == list(range(48))


def test_the_demo_is_repeated_but_no_other_run_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call("demo", "--epochs", 1).code == 0
    assert open_run("runs/demo").steps == list(range(24))
    result = call("demo", "--out", "runs/demo/../demo", "--epochs", 1)
    assert result.code == 2
    assert result.err == (
        "hookstats demo: error: out = 'runs/demo/../demo': holds another run, "
        "expected a new or empty directory; overwrite=True replaces the run, append=True continues "
        "it\n"
    )
    assert call("demo", "--epochs", 0) == (
        2,
        "",
        "hookstats demo: error: --epochs 0: expected 1 or more\n",
    )


def test_without_the_fault_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "plant_fault", lambda model: None)
    demo.train(tmp_path / "run", epochs=2)
    assert open_run(tmp_path / "run").alerts == []
