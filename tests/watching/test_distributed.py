"""watch() with training spread over processes: each rank records what it has."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.ranks import RANKS, Ranks
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs
from hookstats.watching.settings import KINDS

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)


pytestmark = pytest.mark.check


def regression() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))


def batch(rank: int, step: int = 0) -> Tensor:
    """Another one on each rank and in each step."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def plain_gradients(rank: int, steps: int = 1) -> dict[str, Tensor]:
    """Of the parameters of `regression`, for one rank's batches alone."""
    model = regression()
    for step in range(steps):
        model(batch(rank, step)).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def average_gradients(steps: int = 1) -> dict[str, Tensor]:
    """Of the parameters of `regression`, over all ranks."""
    of_ranks = [plain_gradients(rank, steps) for rank in range(RANKS)]
    return {name: sum(of[name] for of in of_ranks) / RANKS for name in of_ranks[0]}


def assert_adds_up(w: hs.Watch) -> None:
    for row in w.coverage():
        assert row.error is None
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row


def ddp_without_reduction(rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(regression())
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param_grad",)) as w:
        with model.no_sync():
            model(batch(rank)).square().sum().backward()
        optimizer.step()
        for name, gradient in plain_gradients(rank).items():
            assert_stats(w.latest[name, "param_grad"], [gradient], 0)


def test_a_step_that_ddp_did_not_reduce_has_the_local_gradients(ranks: Ranks) -> None:
    ranks(ddp_without_reduction)


def accumulated(rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(regression())
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param_grad", "noise_scale"), every=1) as w:
        for step in range(3):  # each of which DDP averages
            model(batch(rank, step)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        found = w.latest.scalars["noise_scale/0"]
    gradients = []
    for step in range(3):
        alone = regression()
        alone(batch(rank, step)).square().sum().backward()
        every = [p.grad for p in alone.parameters() if p.dim() > 1]
        gradients.append(torch.cat([g.double().flatten() for g in every if g is not None]))
    trace = torch.stack(gradients).var(0).sum()
    norm = torch.stack(gradients).mean(0).square().sum() - trace / 3
    assert found == pytest.approx((trace / norm).item(), rel=1e-5)


def test_a_rank_of_ddp_has_the_noise_of_its_own_micro_batches(ranks: Ranks) -> None:
    ranks(accumulated)


def wrapped(how: str) -> nn.Module:
    model: Any = regression()
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    if how == "fsdp2":
        torch.distributed.fsdp.fully_shard(model[0], mesh=mesh)
        torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        return model
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return torch.distributed.tensor.parallel.parallelize_module(model, mesh, plan)


def train(rank: int, how: str, watchers: tuple[int, ...], out: Path | None = None) -> list[Tensor]:
    """The parameters that a training run of three steps ends with."""
    model = wrapped(how)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    w = hs.watch(model, optimizer, kinds=KINDS, out=out) if rank in watchers else None
    for step in range(3):
        optimizer.zero_grad()
        # Under tensor parallelism all ranks are given the same.
        model(batch(0 if how == "tp" else rank, step)).square().sum().backward()
        optimizer.step()
    if w is not None:
        assert w.latest.step == 2
        assert_adds_up(w)
        w.close()
    ended = parameters(model)
    return [p.to_local() if isinstance(p, torch.distributed.tensor.DTensor) else p for p in ended]


@pytest.mark.parametrize("how", ["ddp", "fsdp1", "fsdp2", "tp"])
def test_a_watch_on_no_one_or_every_rank_changes_no_bit_and_never_hangs(
    ranks: Ranks, how: str
) -> None:
    plain = ranks(train, how, ())
    for watchers in ((0,), (1,), (0, 1)):
        watched = ranks(train, how, watchers)
        for mine, other in zip(watched, plain, strict=True):
            assert all(map(torch.equal, mine, other))


def divergent(rank: int) -> None:
    model = wrapped("ddp")
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, every=2 if rank else 3) as w:
        for step in range(7):
            if rank and step == 4:
                w.pause()
            model(batch(rank, step)).sum().backward()
            optimizer.step()
            if not rank and step == 3:
                assert w.latest.step == 3
        assert w.latest.step == (2 if rank else 6)


def test_ranks_may_record_other_steps(ranks: Ranks) -> None:
    ranks(divergent)


def fsdp2(rank: int, watch_first: bool) -> list[int]:
    model = regression()
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    w = hs.watch(model, kinds=KINDS) if watch_first else None
    torch.distributed.fsdp.fully_shard(model[0], mesh=mesh)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    if w is None:
        w = hs.watch(model, kinds=KINDS)
    y = model(batch(rank))
    y.square().sum().backward()
    w.step()
    latest = w.latest
    assert_stats(latest["2", "output"], [y], -1)
    assert_stats(latest["2", "grad_output"], [2 * y], -1)
    rows = []
    gradients = average_gradients()
    coverage = w.coverage()
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, torch.distributed.tensor.DTensor)
        local = parameter.to_local()
        rows.append(len(local))
        if len(local):
            assert_stats(latest[name, "param"], [local], 0)
            assert_stats(latest[name, "param_grad"], [gradients[name].chunk(RANKS)[rank]], 0)
        else:
            for kind in ("param", "param_grad"):
                assert (name, kind) not in latest
                assert coverage[name, kind].skipped == {"empty shard": 1}
    assert_adds_up(w)
    model.double()  # swaps the parameters, which nothing may refer to
    w.step()
    assert {site.dtype for site in w.latest.sites} == {"float64"}
    w.close()
    return rows


@pytest.mark.parametrize("watch_first", [False, True])
def test_fsdp2_shards_are_read_as_each_rank_has_them(ranks: Ranks, watch_first: bool) -> None:
    assert ranks(fsdp2, watch_first) == [[3, 3, 1, 1], [2, 2, 0, 0]]


def fsdp1(rank: int, use_orig_params: bool, watch_first: bool) -> int:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model: Any = regression()
    w = hs.watch(model, kinds=KINDS, rules=()) if watch_first else None
    model = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), use_orig_params=use_orig_params
    )
    if w is None:
        w = hs.watch(model, kinds=KINDS, rules=())
    y = model(batch(rank))
    y.square().sum().backward()
    if watch_first and not use_orig_params:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            w.step()
        assert len(caught) == 8  # values and gradients
        assert "expected watch() to be called after sharding" in str(caught[0].message)
    else:
        w.step()
        assert_adds_up(w)
    latest = w.latest
    assert_stats(latest["2", "output"], [y], -1)
    assert_stats(latest["2", "grad_output"], [2 * y], -1)
    seen = 0
    for site in latest.sites:
        if site.kind in ("param", "param_grad"):
            # Of what was one-dimensional before, a watch that came first cannot tell.
            if not (watch_first and site.name.endswith("bias")):
                assert (site.channels, site.channel_dim, len(site.shape)) == (1, None, 1)
            seen += int(latest[site.name, site.kind].count.sum())
    w.close()
    return seen


@pytest.mark.parametrize("watch_first", [False, True])
@pytest.mark.parametrize("use_orig_params", [True, False])
def test_fsdp1_shards_have_no_channels(
    ranks: Ranks, use_orig_params: bool, watch_first: bool
) -> None:
    seen = ranks(fsdp1, use_orig_params, watch_first)
    gone = watch_first and not use_orig_params
    assert sum(seen) == (0 if gone else 2 * 26)  # values and gradients


def compiled_norm_and_columns(rank: int) -> None:
    """DTensors that compiled code has for a norm, columns and rows: as D1 of a review, which ended
    the training."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def train(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        plan: Any = {
            "0": SequenceParallel(),
            "1": ColwiseParallel(input_layouts=Shard(1)),
            "3": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(model, torch.distributed.init_device_mesh("cpu", (RANKS,)), plan)
        optimizer = SGD(model.parameters(), lr=0.1)
        w = hs.watch(model, optimizer) if watched else None
        called = torch.compile(model, backend="aot_eager")
        for step in range(2):
            optimizer.zero_grad()
            x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(2 * step + rank))
            called(x).square().mean().backward()
            optimizer.step()
        torch.compiler.reset()
        if w is not None:
            kinds = [
                ("0", "output"),
                ("1", "grad_output"),
                ("3", "output"),
                ("1.weight", "param_grad"),
            ]
            counts = [int(w.latest[key].count.sum()) for key in kinds]
            tokens = 2 * 4 * RANKS
            assert counts == [tokens * 8 // RANKS, tokens * 12 // RANKS, 64, 96 // RANKS], counts
            assert w.coverage().failures == {}
            w.close()
        return [p.full_tensor().detach() for p in model.parameters()]  # type: ignore[attr-defined]

    assert all(map(torch.equal, train(False), train(True)))


def test_compiled_sequence_parallel_training_is_recorded(ranks: Ranks) -> None:
    ranks(compiled_norm_and_columns)


def partial_sums(rank: int) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)]).requires_grad_()
    b = distribute_tensor(torch.randn(6, 3), mesh, [Shard(0)])

    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    model = Product()
    with hs.watch(model, kinds=("input", "output", "grad_output")) as w:
        y: Any = model(a, b)
        assert y.placements == (Partial(),)
        y.redistribute(placements=[Replicate()]).square().sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        assert coverage["", "output"].skipped == {"DTensor Partial(sum)": 1}
        # Its gradient is whole on every rank.
        assert coverage["", "grad_output"].observed == 1
        assert_stats(w.latest["", "grad_output"], [2 * y.full_tensor()], -1)
        assert_stats(w.latest["", "input"], [a.to_local()], -1)


def test_partial_sums_are_refused_by_name(ranks: Ranks) -> None:
    ranks(partial_sums)


def changed_views(rank: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)]).requires_grad_()

    class Transposed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).t()

    for inplace in (False, True):
        model = Transposed()
        with hs.watch(model, kinds=("output", "grad_output")) as w:
            y: Any = model(x)
            gradients: list[Any] = []
            y.register_hook(gradients.append)
            z = y.mul_(3) if inplace else y * 3
            z.sum().redistribute(placements=[Replicate()]).backward()
            w.step()
            row = w.coverage()["", "grad_output"]
            if inplace:  # the base's gradient has no memory to look at a view of
                assert "distributed view changed in place" in str(row.error)
            else:
                assert_adds_up(w)
                # A rank has half of the columns, and of their gradient all: another width.
                assert_stats(w.latest["[4ch]", "grad_output"], [gradients[0].to_local()], -1)


def test_distributed_views_changed_in_place_end_the_site(ranks: Ranks) -> None:
    ranks(changed_views)
