"""hookstats ls: the runs in a directory, a line each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import call, healthy, write_run
from torch import nn

import hookstats as hs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run with a loss and an incident, one without, one in a directory, one without steps."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = tmp_path / "sick"
    with hs.watch(
        model, optimizer, out=out, rules=hs.rules.NonFinite(action=lambda alert: None)
    ) as w:
        for step in range(3):
            loss = model(torch.ones(2, 4) * (torch.nan if step == 2 else 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log({"eval/loss": 9.0, "train/loss": 3.0 - step, "f1": 7.0})
    write_run(tmp_path / "healthy", *map(healthy, range(5)), close=False)
    (tmp_path / "deep").mkdir()
    write_run(tmp_path / "deep" / "one", healthy(7))
    write_run(tmp_path / "empty")
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden" / "run", healthy(0))
    return tmp_path


def rows(directory: Path | str, *more: str) -> dict[str, list[str]]:
    result = call("ls", directory, *more)
    assert (result.code, result.err) == (0, "")
    assert result.words[1] == "run started (UTC) steps step loss incidents state"
    return {words.split()[0]: words.split()[3:] for words in result.words[2:]}


@pytest.mark.parametrize("url", ["memory://", "memory://here", "memory://here/deep/one"])
def test_runs_at_a_url(url: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HOOKSTATS_CACHE", str(runs / "cache"))
    memory = fsspec.filesystem("memory")
    memory.put(str(runs / "deep"), "/here/deep", recursive=True)
    memory.put(str(runs / "sick"), "/here/sick", recursive=True)
    monkeypatch.chdir(runs)
    try:
        found = {name.removeprefix("here/"): words for name, words in rows(url).items()}
    finally:
        memory.rm("/here", recursive=True)
    if url.endswith("one"):
        assert list(found) == [url]
    else:
        local = rows(Path())
        assert found == {name: local[name] for name in ("sick", "deep/one")}


def test_runs_are_listed_with_steps_losses_and_incidents(runs: Path) -> None:
    found = rows(runs)
    assert found == {
        "sick": ["3", "2", "1.00", "1", "(1", "error)", "closed"],
        "healthy": ["5", "4", "-", "0", "open"],
        "deep/one": ["1", "7", "-", "0", "closed"],
        "empty": ["0", "-", "-", "0", "closed"],
    }
    begun = [words.split()[1:3] for words in call("ls", runs).words[2:]]
    assert begun == sorted(begun)
    assert list(rows(runs, "--sort", "name")) == ["deep/one", "empty", "healthy", "sick"]
    assert list(rows(runs, "--sort", "incidents"))[-1] == "sick"
    assert next(iter(rows(runs, "--sort", "loss"))) == "sick"


@pytest.mark.parametrize("last", [torch.nan, torch.inf, -torch.inf])
def test_a_loss_that_is_not_finite_is_said(runs: Path, last: float) -> None:
    model = nn.Linear(4, 4)
    with hs.watch(model, out=runs / "ill", rules=()) as w:
        for loss in (1.0, last):
            model(torch.ones(2, 4))
            w.log(loss=loss)
            w.step()
    assert rows(runs)["ill"] == ["2", "1", str(last), "0", "closed"]
    assert list(rows(runs, "--sort", "loss"))[:2] == ["sick", "ill"]


def test_a_run_itself_and_a_directory_without_runs(runs: Path, tmp_path: Path) -> None:
    assert list(rows(runs / "sick")) == [str(runs / "sick")]
    nothing = tmp_path / "deep" / "nothing"
    nothing.mkdir()
    assert call("ls", nothing) == (0, f"no runs below {nothing}\n", "")
    missing = call("ls", tmp_path / "nowhere")
    assert (missing.code, missing.out) == (2, "")
    assert "expected a directory with runs" in missing.err


def test_a_broken_run_hides_no_others(runs: Path) -> None:
    (runs / "healthy" / "run.json").write_text("{")
    result = call("ls", runs)
    assert result.code == 2
    assert result.err.startswith("hookstats ls: error: ")
    assert result.err.count("\n") == 1
    assert len(result.words) == 5
