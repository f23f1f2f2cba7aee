"""Reduce(partial_bytes=): gradients of which each rank has a summand, added up while training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import SGD

import hookstats as hs
from hookstats.records.norms import gradient_norm
from hookstats.records.record import SiteInfo
from hookstats.records.summands import Summand, added

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

SIZE = 4
STEPS = 3
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


def run(model: nn.Module, mesh: Any = None) -> Iterator[Any]:
    """Train; `mesh`: its dimensions "dp" and "tp", the first of which is averaged over by hand."""
    optimizer = SGD(model.parameters(), lr=0.1)
    parts, part = (1, 0) if mesh is None else (mesh["dp"].size(), mesh["dp"].get_local_rank())
    yield optimizer
    for step in range(STEPS):
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
    with hs.watch(model, optimizer, out=out, mesh=mesh, reduce=options, moments=4) as w:
        for _ in training:
            latest = w.latest
    assert w.coverage().failures == {}
    return latest, weights(model)


def of_one_process() -> hs.StepRecord:
    model = Model()
    training = run(model)
    with hs.watch(model, next(training), moments=4) as w:
        list(training)
        return w.latest


def assert_close(mine: hs.ChannelStats, other: hs.ChannelStats) -> None:
    assert mine.count.tolist() == other.count.tolist()
    for name in ("mean", "std", "min", "max", "kurtosis"):
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
    bytes_of_one = 8 * 4
    for most, found in ((0, set()), (bytes_of_one, {weight}), (2 * bytes_of_one, {weight, bias})):
        reduce = {"partial_bytes": most, "channels": most == bytes_of_one}
        for latest, _ in ranks(of_ranks, (1, 4), None, reduce):
            assert set(SUMS) & set(latest) == found
            assert all(len(latest[key]) == (8 if reduce["channels"] else 1) for key in found)


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
    assert len(added([*two, *others])) == 1
    unlike = others[0]._replace(values=torch.zeros(3))
    assert added([*others, unlike]) == []


def test_a_wrong_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="partial_bytes = -1: expected"):
        hs.Reduce(partial_bytes=-1)
