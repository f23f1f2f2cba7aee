"""Continuing a run: by RunWriter(append=True), and by watch with its state_dict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn
from torch.optim import SGD

from hookstats import LinearBins, Watch, open_run, watch
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "model": "Net", "modules": {"a": "Linear"}}


def write(out: Path, *steps: int, rank: int = 0, header: Any = HEADER, **kwargs: Any) -> RunWriter:
    writer = RunWriter(out, header, rank=rank, append=True, seconds_per_part=0, **kwargs)
    for step in steps:
        writer.write(sample(step, rank))
    return writer


def test_a_run_goes_on_after_the_last_step(tmp_path: Path) -> None:
    assert RunWriter(tmp_path, HEADER, append=True).last_step is None
    first = write(tmp_path, 0, 1, 5)  # killed: never closed
    second = RunWriter(tmp_path, HEADER, append=True, seconds_per_part=0)
    assert (first.last_step, second.last_step) == (None, 5)
    run = open_run(tmp_path)
    assert run.steps == [0, 1, 5]
    second.write(sample(6))
    second.close({"second": True})
    assert run.steps == [0, 1, 5, 6]
    write(tmp_path, 7).close({"third": True})
    assert run.coverage == {"third": True}
    for step in run:
        assert_same(run[step], sample(step))
    content = json.loads((tmp_path / "run-00000.json").read_text())
    coverages = [session["coverage"] for session in content["earlier"]]
    assert coverages == [None, None, {"second": True}]


def test_going_back_makes_void_what_came_after(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2, 3).close()
    write(tmp_path, 2, 4).close()
    run = open_run(tmp_path)
    assert run.steps == [0, 1, 2, 4]
    assert RunWriter(tmp_path, HEADER, append=True).last_step == 4
    write(tmp_path, 1).close()
    assert run.steps == [0, 1]


def test_ranks_go_on_from_the_same_step(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    write(tmp_path, 0, 1, 2, 3, rank=1)  # rank 0 lost its last step when it was killed
    writers = [RunWriter(tmp_path, HEADER, rank=rank, append=True) for rank in (1, 0, 2)]
    assert [writer.last_step for writer in writers] == [3, 3, 3]
    for writer in writers:
        writer.write(sample(4, writer.rank))
        writer.close()
    run = open_run(tmp_path)
    assert [run.of_rank(rank).steps for rank in (0, 1, 2)] == [[0, 1, 2, 4], [0, 1, 2, 3, 4], [4]]
    assert_same(run.of_rank(1)[4], sample(4, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "Other"}, "has model = 'Net': expected 'Other', as in this run"),
        ({"modules": {"a": "Conv"}}, r"has modules\['a'\] = 'Linear': expected 'Conv', as in"),
        ({"modules": {}}, r"has modules\['a'\] = 'Linear': expected None, as in this run"),
        ({"bins": None}, "has bins = {'type': 'log', .*}: expected None, as in this run"),
        ({"kinds": ["output"]}, r"has kinds = None: expected \['output'\], as in this run"),
    ],
)
def test_another_run_is_not_continued(tmp_path: Path, change: Any, message: str) -> None:
    write(tmp_path, 0).close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(ValueError, match=rf"out = '.*{tmp_path.name}' {message}"):
        RunWriter(tmp_path, {**HEADER, **change}, append=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_what_is_damaged_is_named_or_left_alone(tmp_path: Path) -> None:
    write(tmp_path, 0, 1).close()
    bad = max((tmp_path / "tensors").iterdir())
    bad.write_bytes(bad.read_bytes()[:-9])
    writer = write(tmp_path, 2)
    assert writer.last_step == 0
    assert open_run(tmp_path)[2].step == 2
    bad.unlink()
    assert open_run(tmp_path).steps == [0, 2]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: damaged, or not written by hookstats"):
        RunWriter(tmp_path, HEADER, append=True)
    (tmp_path / "run.json").unlink()
    with pytest.raises(FileExistsError, match="holds another run"):  # what kind cannot be known
        RunWriter(tmp_path, HEADER, append=True)


def test_each_rank_goes_on_with_its_own_header(tmp_path: Path) -> None:
    stages = [{**HEADER, "modules": {str(rank): "Linear"}} for rank in range(3)]
    for rank in (0, 1):
        write(tmp_path, 0, rank=rank, header=stages[rank]).close({"rank": rank})
    for rank in (1, 0, 2):  # a restart with one more
        write(tmp_path, 1, rank=rank, header=stages[rank]).close({"rank": rank})
    run = open_run(tmp_path)
    assert [run.of_rank(rank).header["modules"] for rank in run.ranks] == [
        s["modules"] for s in stages
    ]
    everything = dict.fromkeys(("0", "1", "2"), "Linear")
    assert (run.header["modules"], run.of_rank(1).coverage) == (everything, {"rank": 1})
    with pytest.raises(ValueError, match=r"has modules\['0'\] = None: expected 'Linear'"):
        RunWriter(tmp_path, stages[0], rank=1, append=True)
    with pytest.raises(ValueError, match=r"has bins = .*: expected None, as in this run"):
        RunWriter(tmp_path, {**HEADER, "bins": None}, rank=3, append=True)
    with pytest.raises(FileNotFoundError, match=r"run-00007\.json: rank 7 has written no header"):
        run.of_rank(7)


def test_a_run_without_rank_0_is_read(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, rank=3)
    writer.write(sample(2, 3))
    writer.close({"rank": 3})
    run = open_run(tmp_path)
    assert (run.ranks, run.steps, run.coverage) == ([3], [2], {"rank": 3})
    assert run.header["model"] == "Net"
    assert_same(run.of_rank(3)[2], sample(2, 3))


@pytest.mark.parametrize("append", [False, True])
def test_what_killed_writers_left_is_removed(tmp_path: Path, append: bool) -> None:
    if append:
        write(tmp_path, 0)
    (tmp_path / "tensors").mkdir(exist_ok=True)
    mine = [
        tmp_path / ".00000.run-00000.json.0123abcd.tmp",
        tmp_path / "tensors" / ".00000.00000-000003-000000000009.parquet.0123abcd.tmp",
    ]
    theirs = [
        tmp_path / ".00001.run-00001.json.0123abcd.tmp",
        tmp_path / "tensors" / ".00001.00001-000000-000000000009.parquet.0123abcd.tmp",
    ]
    for path in (*mine, *theirs):
        path.write_bytes(bytes(5000))
    writer = RunWriter(tmp_path, HEADER, append=append)
    assert [path.exists() for path in mine] == [False] * 2
    assert [path.exists() for path in theirs] == [True] * 2  # they may be writing just now
    writer.write(sample(1))
    writer.close()
    assert open_run(tmp_path).steps == ([0, 1] if append else [1])


def test_channels_whose_tensors_a_kill_kept_from_coming_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    last = max((tmp_path / "tensors").iterdir())
    last.unlink()
    assert open_run(tmp_path).steps == [0]
    assert open_run(tmp_path).table(["step"], channels=True)["step"].unique().to_pylist() == [0]
    write(tmp_path, 1, 2).close()
    run = open_run(tmp_path)
    assert run.steps == run.steps_with_channels == [0, 1, 2]
    assert_same(run[1], sample(1))


def test_of_two_writers_of_a_run_one_is_told(tmp_path: Path) -> None:
    one, two = write(tmp_path, 0), write(tmp_path)
    two.write(sample(1))
    with pytest.raises(FileExistsError, match=r"00000-000001-000-000000000001\.parquet"):
        one.write(sample(1))
    two.close()
    assert open_run(tmp_path).steps == [0, 1]


class Training:
    """A small training that can be watched, saved and resumed."""

    def __init__(self, out: Path | None = None, **kwargs: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.watch: Watch = watch(self.model, self.optimizer, out=out, **kwargs)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 3)).sum().backward()
            self.optimizer.step()


def test_a_watch_goes_on_where_its_state_says(tmp_path: Path) -> None:
    first = Training(tmp_path, append=True)
    first.run(4)
    checkpoint = json.loads(json.dumps(first.watch.state_dict()))
    assert checkpoint["step"] == 4
    first.run(3)
    first.watch.close()
    second = Training(tmp_path, append=True)
    second.watch.load_state_dict(checkpoint)
    assert second.watch.state_dict() == checkpoint
    second.run(2)
    assert second.watch.latest.step == 5
    second.watch.close()
    assert open_run(tmp_path).steps == [0, 1, 2, 3, 4, 5]


def test_a_watch_without_its_state_goes_on_after_the_last_step(tmp_path: Path) -> None:
    for steps in (3, 2):
        training = Training(tmp_path, append=True, every=2)
        training.run(steps)
        training.watch.close()
    assert open_run(tmp_path).steps == [0, 2, 4]
    with pytest.raises(FileExistsError, match="holds another run"):
        Training(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "state_dict has step = -1: expected an integer in 0"),
        ({"step": "3"}, "state_dict has step = '3': expected an integer"),
        ({"step": True}, "state_dict has step = True: expected an integer"),
        ({"step": 2**70}, "state_dict has step = 1180591620717411303424: expected an integer"),
        ({"step": None}, "state_dict = .*: expected a dict from Watch"),
        ({"settings": None}, "state_dict = .*: expected a dict from Watch"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], message: str) -> None:
    training = Training()
    with pytest.raises(ValueError, match=message):
        training.watch.load_state_dict({**training.watch.state_dict(), **change})
    training.run(1)
    assert training.watch.latest.step == 0
    training.watch.close()


def test_the_state_of_other_settings_is_refused() -> None:
    other = Training(channel_bins=LinearBins(4, -1.0, 1.0), every=3)
    training = Training()
    message = (
        r"state_dict has channel_bins = \{'type': 'linear', .*\}: expected None, as in this run"
    )
    with pytest.raises(ValueError, match=message):
        training.watch.load_state_dict(other.watch.state_dict())
    every = Training(every=3)
    training.watch.load_state_dict(every.watch.state_dict())
    for each in (other, training, every):
        each.watch.close()
    with pytest.raises(ValueError, match="the watch is closed"):
        training.watch.load_state_dict(every.watch.state_dict())


def test_a_checkpoint_with_the_state_loads_as_weights_only(tmp_path: Path) -> None:
    with watch(nn.Linear(2, 2)) as w:
        torch.save(w.state_dict(), tmp_path / "checkpoint.pt")
        loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        w.load_state_dict(loaded)
