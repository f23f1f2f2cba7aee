"""The argument `ranks` of sinks: which ranks write, and where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.samples import record_of, tensors

from hookstats import sinks
from hookstats.records.record import StepRecord

STEPS = 3


def record(step: int, rank: int | None) -> StepRecord:
    return replace(record_of(tensors(step), step), rank=rank)


def write(monkeypatch: pytest.MonkeyPatch, make: Any, merged: bool = False) -> None:
    """As two ranks do, one after the other."""
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        sink = make()
        for step in range(STEPS):
            sink(record(step, None if merged else rank))
            sink.write_scalars(step, rank, {"loss": 0.5})
        sink.close()


def lines(path: Path) -> list[tuple[int, int | None]]:
    """Step and rank of each record; of numbers that were logged, 100 and the rank."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(
        {(100 if "scalars" in line else line["step"], line["rank"]) for line in found}, key=str
    )


def of_rank(rank: int | None, scalars: int) -> list[tuple[int, int | None]]:
    return sorted([(100, scalars), *((step, rank) for step in range(STEPS))], key=str)


def test_each_rank_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(monkeypatch, lambda: sinks.JSONL(tmp_path / "stats.v2.jsonl"))
    names = ["stats.v2.jsonl", "stats.v2.rank1.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for rank, name in enumerate(names):
        assert lines(tmp_path / name) == of_rank(rank, rank)


@pytest.mark.parametrize("ranks", [0, 1])
def test_one_rank_alone_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    write(monkeypatch, lambda: sinks.JSONL(tmp_path / "stats.jsonl", ranks=ranks))
    (path,) = tmp_path.iterdir()
    assert (path.name, lines(path)) == ("stats.jsonl", of_rank(ranks, ranks))


def test_records_of_the_whole_model_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = lambda: sinks.JSONL(tmp_path / "stats.jsonl", ranks="merged")  # noqa: E731
    write(monkeypatch, make, merged=True)
    assert lines(tmp_path / "stats.jsonl") == of_rank(None, 0)
    write(monkeypatch, make)  # where the merging ended, each rank has its own
    assert lines(tmp_path / "stats.jsonl") == of_rank(None, 0)


@pytest.mark.check
@pytest.mark.parametrize("ranks", ["all", "merged", 1])
def test_tensorboard_has_curves_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Any
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(monkeypatch, lambda: sinks.TensorBoard(tmp_path, ranks=ranks), merged=ranks == "merged")
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("events.*")}
    assert found == {".", "rank1"} if ranks == "all" else {"."}
    for folder in found:
        events = EventAccumulator(str(tmp_path / folder), size_guidance={"scalars": 0})
        events.Reload()
        for tag in ("output.rms/scalar", "scalar/loss"):
            assert [event.step for event in events.Scalars(tag)] == list(range(STEPS))


def test_who_does_not_write_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    import wandb

    started: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "init", lambda **kw: started.append(kw))
    monkeypatch.setenv("RANK", "1")
    sink = sinks.WandB(ranks=0)
    sink(record(0, 1))
    sink.write_scalars(0, 1, {"loss": 1.0})
    sink.close()
    assert started == []
    assert repr(sink) == "WandB(None)"


@pytest.mark.parametrize("wrong", [-1, True, "none", 0.5, None])
def test_a_wrong_argument_is_refused(tmp_path: Path, wrong: Any) -> None:
    for make in (
        lambda **kw: sinks.JSONL(tmp_path / "a", **kw),
        lambda **kw: sinks.TensorBoard(tmp_path, **kw),
        lambda **kw: sinks.WandB(object(), **kw),
    ):
        with pytest.raises(ValueError, match=f"ranks = {wrong!r}: expected 'all', 'merged'"):
            make(ranks=wrong)
    assert list(tmp_path.iterdir()) == []
