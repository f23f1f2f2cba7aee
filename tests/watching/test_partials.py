"""Reduce(partial_bytes=): gradients of which each rank has a summand, added up while training."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.commands import healthy
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import SGD

import hookstats as hs
from hookstats.arena.arena import Arena
from hookstats.hooks import partials
from hookstats.hooks.partials import Gradient, Partials
from hookstats.hooks.sites import Site
from hookstats.hooks.spread import Spread
from hookstats.records.norms import gradient_norm
from hookstats.records.record import SiteInfo
from hookstats.records.summands import Summand, added
from hookstats.runs.message import Message, from_bytes, to_bytes

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

SIZE = 4
STEPS = 3
BYTES_OF_ONE = 8 * 4
ENOUGH = 1 << 16
SUMS = [("norm.weight", "param_grad"), ("norm.bias", "param_grad")]


class Model(nn.Module):
    """A block whose norm sees a part of each sequence on a rank."""

    mesh: Any = None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.mesh is not None:
            x = distribute_tensor(x, self.mesh, [Shard(1)])
        x = x + self.down(self.up(self.norm(x)).relu())
        y: Tensor = self.out(x)
        return y


PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "out": PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
    ),
}


def batch(step: int) -> Tensor:
    return torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(step))


def run(model: nn.Module, mesh: Any = None, steps: int = STEPS) -> Iterator[Any]:
    """Train; `mesh`: its dimensions "dp" and "tp", the first of which is averaged over by hand."""
    optimizer = SGD(model.parameters(), lr=0.1)
    parts, part = (1, 0) if mesh is None else (mesh["dp"].size(), mesh["dp"].get_local_rank())
    yield optimizer
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step).chunk(parts)[part]).square().mean().backward()
        for parameter in model.parameters() if parts > 1 else ():
            gradient: Any = parameter.grad
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            torch.distributed.all_reduce(local, group=mesh.get_group("dp"))
            local /= parts
        optimizer.step()
        yield step


def weights(model: nn.Module) -> str:
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    return hashlib.md5(b"".join(p.numpy().tobytes() for p in whole)).hexdigest()


def of_ranks(
    rank: int, shape: tuple[int, int], out: Path | None, reduce: dict[str, Any] | None
) -> tuple[hs.StepRecord | None, str]:
    """What `latest` has in the end, and the weights; without `reduce`, nothing watches."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    model: Any = parallelize_module(Model(), mesh["tp"], PLAN)
    model.mesh = mesh["tp"]
    training = run(model, mesh)
    optimizer = next(training)
    if reduce is None:
        list(training)
        return None, weights(model)
    options = hs.Reduce(timeout=120, **reduce)
    with hs.watch(model, optimizer, out=out, mesh=mesh, reduce=options) as w:
        for _ in training:
            latest = w.latest
    assert bool(w.coverage().failures) == (reduce["partial_bytes"] == BYTES_OF_ONE)
    return latest, weights(model)


def of_one_process() -> hs.StepRecord:
    model = Model()
    training = run(model)
    with hs.watch(model, next(training)) as w:
        list(training)
        return w.latest


def assert_close(mine: hs.ChannelStats, other: hs.ChannelStats) -> None:
    assert mine.count.tolist() == other.count.tolist()
    for name in ("mean", "std", "min", "max"):
        a, b = getattr(mine, name), getattr(other, name)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.check
@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_sums_are_those_of_one_process(
    ranks: Ranks, tmp_path: Path, shape: tuple[int, int]
) -> None:
    answers = ranks(of_ranks, shape, tmp_path, {"partial_bytes": ENOUGH})
    one = of_one_process()
    for latest, _ in answers:
        for key in SUMS:
            assert_close(latest[key], one[key])
            assert latest[key].tensor_hist.slot_counts.sum() == 8
        assert latest.scalars["grad_norm"] == pytest.approx(gradient_norm(one), rel=1e-4)
        assert latest.moments.tobytes() == answers[0][0].moments.tobytes()
    # Nothing is asked of the training, which ends with the same weights to the bit.
    plain = ranks(of_ranks, shape, None, None)
    assert [bits for _, bits in answers] == [bits for _, bits in plain]
    # What ranks write stays what they saw, and says what is absent.
    read = hs.open_run(tmp_path)
    assert not set(SUMS) & set(read[STEPS - 1])
    skipped = {(r["name"], r["kind"]): r["skipped"] for r in read.coverage["rows"]}  # type: ignore[index]
    for key in SUMS:
        assert skipped[key] == {"DTensor Partial(sum)": STEPS * SIZE}


@pytest.mark.check
def test_their_bytes_are_bounded_and_none_by_default(ranks: Ranks) -> None:
    weight, bias = SUMS
    for most, found in ((0, set()), (BYTES_OF_ONE, {weight}), (2 * BYTES_OF_ONE, {weight, bias})):
        reduce = {"partial_bytes": most, "channels": most == BYTES_OF_ONE}
        for latest, _ in ranks(of_ranks, (1, 4), None, reduce):
            assert set(SUMS) & set(latest) == found
            assert ("grad_norm" in latest.scalars) == (found != {weight})
            assert all(len(latest[key]) == (8 if reduce["channels"] else 1) for key in found)


def of_sink(
    rank: int, steps: int, blocks: bool
) -> tuple[list[hs.StepRecord], dict[str, str], list[str]]:
    """What a sink got while nobody waits for records, the failures, and the warnings.

    blocks: the sink keeps the first record until the training is done, and rank 1 has room for two
    steps.
    """
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    model: Any = parallelize_module(Model(), mesh["tp"], PLAN)
    model.mesh = mesh["tp"]
    training = run(model, mesh, steps)
    optimizer = next(training)
    records: list[hs.StepRecord] = []
    done = threading.Event()

    def sink(record: hs.StepRecord) -> None:
        records.append(record)
        assert done.wait(120) or not blocks

    if not blocks:
        done.set()
    options = hs.Reduce(timeout=120, partial_bytes=2 * 8 * 4)
    room = 0 if blocks and rank == 1 else partials.BYTES_AHEAD
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with (
            patch.object(partials, "BYTES_AHEAD", room),
            hs.watch(model, optimizer, mesh=mesh, reduce=options, sinks=[sink], rules=()) as w,
        ):
            w._flusher.patience = 120
            list(training)
            done.set()
    return records, w.coverage().failures, [str(each.message) for each in said]


def norms_of_one_process(steps: int) -> list[float]:
    model = Model()
    training = run(model, None, steps)
    with hs.watch(model, next(training), rules=()) as w:
        return [w.latest.scalars["grad_norm"] for _ in training]


@pytest.mark.check
def test_no_sum_is_lost_where_steps_wait_to_be_merged(ranks: Ranks) -> None:
    norms = norms_of_one_process(12)
    for records, failures, _ in ranks(of_sink, 12, False):
        assert [set(SUMS) <= set(record) for record in records] == [True] * 12
        assert [record.scalars["grad_norm"] for record in records] == pytest.approx(norms, rel=1e-4)
        assert failures == {}


def test_without_a_summand_there_is_no_norm(ranks: Ranks) -> None:
    norms = norms_of_one_process(8)
    answers = ranks(of_sink, 8, True)
    whole = [set(SUMS) <= set(record) for record in answers[0][0]]
    assert whole[0]
    assert not all(whole)
    for rank, (records, failures, said) in enumerate(answers):
        assert [len(set(SUMS) & set(record)) for record in records] == [2 * each for each in whole]
        for record, has_sums, norm in zip(records, whole, norms, strict=True):
            found = record.scalars.get("grad_norm")
            assert found == (pytest.approx(norm, rel=1e-4) if has_sums else None)
        assert failures.keys() == ({"adding up gradients"} if rank == 1 else set())
        assert len([text for text in said if "adding up" in text]) == (rank == 1)
    why = answers[1][1]["adding up gradients"]
    assert why.endswith(f"; in all, {2 * whole.count(False)} summands are left out"), why


def of_error(rank: int) -> tuple[hs.StepRecord, dict[tuple[str, str], str | None]]:
    """What `latest` has where a rank fails to copy a gradient, and the errors of the sites."""
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("dp", "tp"))
    model: Any = parallelize_module(Model(), mesh["tp"], PLAN)
    model.mesh = mesh["tp"]
    training = run(model, mesh)
    optimizer = next(training)
    describe = Partials._describe

    def fails(self: Partials, site: Site, tensor: Tensor) -> Summand | None:
        if rank == 1 and site.name == "norm.weight":
            raise MemoryError("no memory for a copy")
        return describe(self, site, tensor)

    options = hs.Reduce(timeout=120, partial_bytes=ENOUGH)
    with (
        patch.object(Partials, "_describe", fails),
        hs.watch(model, optimizer, mesh=mesh, reduce=options, rules=()) as w,
    ):
        list(training)
        rows = {(row.name, row.kind): row.error for row in w.coverage()}
        return w.latest, {key: error for key, error in rows.items() if error}


@pytest.mark.check
def test_an_error_ends_the_sums_of_one_gradient_alone(ranks: Ranks) -> None:
    weight, bias = SUMS
    for rank, (latest, errors) in enumerate(ranks(of_error)):
        assert latest.step == STEPS - 1
        assert set(SUMS) & set(latest) == {bias}
        assert "grad_norm" not in latest.scalars
        assert errors == ({weight: "MemoryError: no memory for a copy"} if rank == 1 else {})


def of_scaled(rank: int, dtype: torch.dtype, scaled: list[float], scale: float) -> list[float]:
    """The sum of what the ranks have of a scaled gradient, by way of messages."""
    mesh = init_device_mesh("cpu", (SIZE,))
    gradient = DTensor.from_local(torch.tensor(scaled, dtype=dtype), mesh, [Partial()])
    site = Site(Arena(None, None), "norm.weight", "param_grad", lambda ndim: 0)
    made = Partials(Spread([]), ENOUGH)
    made.keep([Gradient(site, gradient)], torch.tensor(scale))
    kept = made.take()
    assert kept is not None
    assert kept.lost == 0
    content = to_bytes(Message(healthy(0), np.arange(len(healthy(0))), kept, [0]))
    read = from_bytes(content, 0, healthy(0).bins, healthy(0).channel_bins)
    ((info, total),) = added(list(read.summands) * SIZE)
    assert total is not None
    assert info.dtype == str(dtype).removeprefix("torch.")
    found: list[float] = total.tolist()
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_are_unscaled_as_the_kernels_do(ranks: Ranks, dtype: torch.dtype) -> None:
    scale = 65536.0
    scaled = torch.tensor([1e-7, 1e-9, 3.0]).mul(scale / 4).to(dtype)
    if dtype == torch.float16:
        scaled[2] = 60000.0
    expected = (scaled.double() / scale * SIZE).tolist()
    for found in ranks(of_scaled, dtype, scaled.tolist(), scale):
        assert found == pytest.approx(expected, rel=1e-6)


def summand(value: float, dtype: torch.dtype, ranks: tuple[int, ...], mean: bool = False):
    info = SiteInfo("norm.weight", "param_grad", 2, 0, (2,), "bfloat16")
    return Summand(info, torch.tensor([value, 1.0], dtype=dtype), ranks, mean)


def test_sums_are_rounded_once_and_means_divided() -> None:
    half, group = torch.bfloat16, (0, 1, 2)
    ((_, total),) = added([summand(256.0, half, group)] + [summand(1.0, half, group)] * 2)
    assert total.tolist() == [258.0, 3.0]  # 256 + 1 is 256 in bfloat16
    assert total.dtype == half
    ((_, total),) = added([summand(2.0, torch.float64, group, mean=True)] * 3)
    assert total.tolist() == [2.0, 1.0]


def test_a_sum_without_all_summands_is_absent() -> None:
    two = [summand(1.0, torch.float32, (0, 1))] * 2
    others = [summand(1.0, torch.float32, (2, 3))]
    assert [total is None for _, total in added([*two, *others])] == [False, True]
    unlike = others[0]._replace(values=torch.zeros(3))
    assert [total for _, total in added([*others, unlike])] == [None]
    assert [total for _, total in added([*two, *two])] == [None]  # two steps of an optimizer


def test_a_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="partial_bytes = -1: expected"):
        hs.Reduce(partial_bytes=-1)
