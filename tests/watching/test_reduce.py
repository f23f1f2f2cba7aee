"""watch(reduce=Reduce()): the ranks merge their records while they train."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.modules import take_step
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import SGD

import hookstats as hs
from hookstats.records.difference import between
from hookstats.records.record import StepRecord
from hookstats.stats.state import COUNT

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

SIZE = 4
STEPS = 4


def test_arguments_are_checked() -> None:
    for arguments, wrong in [
        ({"every": 0}, "every = 0: expected"),
        ({"timeout": 0}, "timeout = 0: expected seconds"),
        ({"mesh": "dp"}, "mesh = 'dp': expected a DeviceMesh or None"),
    ]:
        with pytest.raises(ValueError, match=wrong):
            hs.Reduce(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"reduce = True: expected a hookstats.Reduce or None"):
        hs.watch(nn.Linear(2, 2), reduce=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected torch\.distributed to be initialised"):
        hs.watch(nn.Linear(2, 2), reduce=hs.Reduce())


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def model_of(mode: str, rank: int) -> nn.Module:
    model: nn.Module = network()
    mesh = torch.distributed.init_device_mesh("cpu", (SIZE,), mesh_dim_names=("x",))
    if mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif mode == "fsdp":
        fully_shard(model, mesh=mesh)
    elif mode == "tensor":
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    else:  # as the stages of a pipeline, other layers on each rank
        model = nn.ModuleDict({str(rank): model})[str(rank)]
        model = nn.Sequential(*[nn.Identity()] * rank, *model)
    return model


def train(model: nn.Module, rank: int, steps: int = STEPS, **arguments: Any) -> hs.Watch:
    optimizer = SGD(model.parameters(), lr=0.1)
    w = hs.watch(model, optimizer, channel_bins=hs.LogBins(1, -8, 8), **arguments)
    for step in range(steps):
        take_step(optimizer, model(batch(rank, step)).square().mean())
    return w


def digest(model: nn.Module) -> str:
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    return hashlib.md5(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()


def merge(rank: int, mode: str, out: Path) -> tuple[dict[str, Any], str, str]:
    """What `latest` has on this rank, and the weights of a watched and of a plain training."""
    model = model_of(mode, rank)
    given: list[int] = []
    sinks = [lambda record: given.append(record.step)]
    with train(model, rank, out=out, reduce=hs.Reduce(timeout=60), sinks=sinks) as w:
        latest = w.latest
        assert latest.rank is None
        assert given == list(range(STEPS))
        assert w.coverage().failures == {}
    torch.distributed.barrier()
    read = hs.open_run(out)[STEPS - 1].without_channels()
    assert list(latest) == list(read)
    infos = [(s.name, s.kind, s.channels, s.dtype) for s in latest.sites]
    assert infos == [(s.name, s.kind, s.channels, s.dtype) for s in read.sites]
    assert not between(latest, read, rtol=1e-12)
    assert latest.hist.counts.tolist() == read.hist.counts.tolist()
    assert latest.channels is None
    norm = w.latest.scalars["grad_norm"]
    plain = model_of(mode, rank)
    train(plain, rank, kinds=("output",)).close()
    bits = hashlib.md5(latest.moments.tobytes() + latest.tallies.tobytes()).hexdigest()
    return {"bits": bits, "norm": norm, "sites": len(latest)}, digest(model), digest(plain)


@pytest.mark.check
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "tensor", "stages"])
def test_latest_is_what_the_run_has_when_it_is_read(
    mode: str, ranks: Ranks, tmp_path: Path
) -> None:
    answers = ranks(merge, mode, tmp_path / "run")
    assert all(answer[0] == answers[0][0] for answer in answers)
    assert all(watched == plain for _, watched, plain in answers)


def collectives(rank: int, layers: int) -> dict[str, int]:
    """How often each collective of the merging is called in the training of so many layers."""
    model = nn.Sequential(nn.Linear(6, 8), *[nn.Linear(8, 8) for _ in range(layers)])
    called: dict[str, int] = {}

    def counting(name: str) -> Any:
        original = getattr(torch.distributed, name)

        def call(*args: Any, **options: Any) -> Any:
            called[name] = called.get(name, 0) + (options.get("group") is not None)
            return original(*args, **options)

        return call

    names = [n for n in dir(torch.distributed) if n.startswith(("all_", "broadcast", "gather"))]
    names += ["barrier", "reduce", "reduce_scatter", "scatter", "send", "recv"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(torch.distributed, name, counting(name))
        train(model, rank, reduce=hs.Reduce(timeout=60)).close()
    return {name: times for name, times in called.items() if times}


@pytest.mark.check
@pytest.mark.parametrize("layers", [1, 30])
def test_one_gathering_a_step_whatever_the_layers(layers: int, ranks: Ranks) -> None:
    expected = {"all_gather_object": STEPS}
    assert ranks(collectives, layers) == [expected] * SIZE


def spoiled(rank: int, out: Path) -> list[hs.rules.Alert]:
    """The alerts of a run in which one rank gets a NaN, and all ranks say so."""
    model = model_of("ddp", rank)
    rules = hs.rules.NonFinite(action=lambda alert: None)
    with hs.watch(model, out=out, rules=rules, reduce=hs.Reduce(timeout=60)) as w:
        for step in range(STEPS):
            model(batch(rank, step) * (torch.nan if (rank, step) == (1, 2) else 1.0))
            w.step()
    assert w.alerts
    torch.distributed.barrier()
    return hs.open_run(out).alerts


@pytest.mark.check
def test_what_all_ranks_found_of_the_whole_model_counts_once(ranks: Ranks, tmp_path: Path) -> None:
    for alerts in ranks(spoiled, tmp_path):
        assert {(alert.step, alert.rank) for alert in alerts} == {(2, None)}
        assert len({alert.message for alert in alerts}) == len(alerts)


def tensors_alone(rank: int, every: int) -> None:
    model = model_of("ddp", rank)
    given: list[hs.StepRecord] = []
    reduce = hs.Reduce(every=every, timeout=60)
    with train(model, rank, sinks=[given.append], reduce=reduce) as w:
        assert w.latest.step == 3
    assert [record.step for record in given] == [0, 3]
    for record in given:
        assert record.channels is None
        assert {site.name: site.channels for site in record.sites}["0"] == 8
        assert record["0", "output"].count.tolist() == [SIZE * 5 * 8]
        assert record.hist.counts.sum() == record.tallies[:, COUNT].sum()


@pytest.mark.check
def test_whole_tensors_now_and_then(ranks: Ranks) -> None:
    ranks(tensors_alone, 3)


def unlike(rank: int) -> list[int]:
    model = model_of("stages", rank)
    given: list[int] = []
    sinks = [lambda record: given.append(record.step)]
    every = 1 if rank else 2
    reduce = hs.Reduce(timeout=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody else comes to step 3
        train(model, rank, sinks=sinks, every=every, reduce=reduce).close()
    return given


@pytest.mark.check
def test_steps_that_not_all_ranks_record_are_left_out(ranks: Ranks) -> None:
    # Step 3 is each rank's own, as rank 0 does not come any more.
    assert ranks(unlike) == [[0, 2], [0, 2, 3], [0, 2, 3], [0, 2, 3]]


def dies(rank: int, rendezvous: Path, out: Path, when: str) -> None:
    """Rank 1 is gone before, during or after the merging of step 2."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    model = network()
    given: list[tuple[int, int | None]] = []

    def leave(record: hs.StepRecord) -> None:
        given.append((record.step, record.rank))
        if rank == 1 and record.step == 2 and when == "after":
            os._exit(7)

    reduce = hs.Reduce(timeout=2)
    with (
        warnings.catch_warnings(record=True) as warned,
        hs.watch(model, kinds=("output",), out=out, sinks=[leave], reduce=reduce) as w,
    ):
        warnings.simplefilter("always")
        for step in range(6):
            model(batch(rank, step))
            if rank == 1 and step == 2 and when == "before":
                w._recorder.drain()
                os._exit(7)
            w.step()
            if rank == 1 and step == 2 and when == "during":
                os._exit(7)
            w._recorder.drain()
    merged = [step for step, of in given if of is None]
    assert merged[:2] == [0, 1]
    assert [step for step, _ in given] == list(range(6))
    assert [of for _, of in given[3:]] == [0, 0, 0]
    (warning,) = [each for each in warned if "merging the records" in str(each.message)]
    assert "each rank goes on with its own" in str(warning.message)
    assert "merging the records of all ranks" in w.coverage().failures
    (alert,) = [each for each in w.alerts if each.rule == "reduce"]
    assert (alert.step, alert.severity) == (2, "note") if when == "before" else alert.step in (2, 3)
    assert "the ranks do not merge their records any more (" in alert.message
    os._exit(0)  # the group's own threads wait for the other rank


@pytest.mark.check
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_rank_that_dies_stops_nobody(when: str, tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=dies, args=(rank, tmp_path / "file", tmp_path / "run", when))
        for rank in range(2)
    ]
    began = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 7]
    assert time.monotonic() - began < 100
    run = hs.open_run(tmp_path / "run")
    assert run.of_rank(0).steps == list(range(6))
    assert [alert.rule for alert in run.alerts].count("reduce") == 1
    assert set(run.of_rank(1).steps) >= {0, 1}


if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

BEFORE, AFTER = 3, 5  # rows of a rank's batches


def go_back(rank: int) -> list[tuple[int, int]]:
    """The merged steps, each with its rows; rank 0 lacks what the others record last."""
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    merged: list[tuple[int, int]] = []

    def keep(record: StepRecord) -> None:
        merged.append((record.step, int(record["", "output"].count[0]) // 2))  # channels

    def train(steps: int, rows: int) -> None:
        for _ in range(steps):
            model(torch.ones(rows, 2)).sum().backward()
            optimizer.step()

    reduce = hs.Reduce(timeout=30)
    with hs.watch(model, optimizer, reduce=reduce, sinks=[keep], rules=()) as w:
        train(4, BEFORE)
        if rank == 0:
            w.pause()
        train(2, BEFORE)
        if rank == 0:
            w.resume()
        w.set_step(2)
        train(6, AFTER)
        assert w.coverage().failures == {}
    return merged


@pytest.mark.check
def test_a_step_is_merged_with_those_of_its_own_time(ranks: Ranks) -> None:
    before = [(step, BEFORE * SIZE) for step in range(4)]
    after = [(step, AFTER * SIZE) for step in range(2, 8)]
    assert ranks(go_back) == [before + after] * SIZE
