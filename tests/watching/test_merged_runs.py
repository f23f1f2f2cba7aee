"""A run of several ranks, merged, is that of one process; and training keeps its bits on ranks."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import hookstats as hs
from hookstats.records.norms import gradient_norm

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)
pytest.importorskip("pyarrow")

pytestmark = pytest.mark.check
KINDS = ("input", "output", "grad_output", "param", "param_grad")
SIZES = 4, 2
BATCH, SEQUENCE = 8, 4
LAYERS = 8


class Model(nn.Module):
    """What every kind of parallelism can split: rows, columns, a norm, an activation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.act = nn.GELU()
        self.down = nn.Linear(12, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        y: Tensor = self.out(x)
        return y


def samples() -> Tensor:
    return torch.randn(BATCH, SEQUENCE, 8, generator=torch.Generator().manual_seed(1))


def train(
    model: nn.Module, x: Tensor, out: Path, *, compiles: bool = False, **arguments: Any
) -> None:
    """One step; the loss is the mean over the elements that this process has."""
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=KINDS, out=out, **arguments) as w:
        call: Any = torch.compile(model, backend="aot_eager") if compiles else model
        call(x).square().mean().backward()
        optimizer.step()
        for row in w.coverage():
            assert row.error is None
    if compiles:
        torch.compiler.reset()  # for the tests that come, in the same process


def size() -> int:
    """The number of ranks, on one of them."""
    return torch.distributed.get_world_size()


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def ddp(
    rank: int, out: Path, compiles: bool = False, checkpoints: bool = False, **options: bool
) -> None:
    model = Model()
    if checkpoints:
        model.up.forward = partial(checkpoint, model.up.forward, use_reentrant=False)
    wrapped = nn.parallel.DistributedDataParallel(model, **options)
    train(wrapped, samples().chunk(size())[rank], out, compiles=compiles)


def ddp_no_sync(rank: int, out: Path) -> None:
    """Two micro-batches a step, of which the second alone reduces gradients."""
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = SGD(model.parameters(), lr=0.1)
    first, second = samples().chunk(size())[rank].chunk(2)
    with hs.watch(model, optimizer, kinds=KINDS, out=out):
        with model.no_sync():
            (model(first).square().mean() / 2).backward()
        (model(second).square().mean() / 2).backward()
        optimizer.step()


def zero(rank: int, out: Path) -> None:
    """Each rank has the optimizer of some parameters alone."""
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    with hs.watch(model, optimizer, kinds=KINDS, out=out):
        model(samples().chunk(size())[rank]).square().mean().backward()
        optimizer.step()


def sequence_by_hand(rank: int, out: Path) -> None:
    """As context parallelism, where nothing tells hookstats of it."""
    by_hand(rank, out, dim=1)


def by_hand(rank: int, out: Path, dim: int = 0) -> None:
    """Data parallelism without a wrapper, which nothing tells hookstats of."""
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=KINDS, out=out):
        model(samples().chunk(size(), dim)[rank]).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= size()
        optimizer.step()


def context_parallel(rank: int, out: Path) -> None:
    """Each rank has a part of every sequence."""
    model = nn.parallel.DistributedDataParallel(Model())
    mesh = mesh_of((1, size()), ("dp", "cp"))
    train(model, samples().chunk(size(), 1)[rank], out, mesh=mesh)


def fsdp1(rank: int, out: Path, use_orig_params: bool) -> None:
    model = FullyShardedDataParallel(
        Model(), device_id=torch.device("cpu"), use_orig_params=use_orig_params
    )
    train(model, samples().chunk(size())[rank], out)


def fsdp1_hybrid(rank: int, out: Path) -> None:
    model = FullyShardedDataParallel(
        Model(),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        device_mesh=mesh_of((2, 2), ("replicate", "shard")),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    )
    train(model, samples().chunk(size())[rank], out)


def fsdp2(
    rank: int,
    out: Path,
    shape: tuple[int, ...] = (),
    checkpoints: bool = False,
    *,
    half: bool = False,
    compiles: bool = False,
) -> None:
    model = Model()
    if checkpoints:
        model.up.forward = partial(checkpoint, model.up.forward, use_reentrant=False)
    shape = shape or (size(),)
    mesh = mesh_of(shape, ("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None)
    fully_shard(model.up, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    train(model, samples().chunk(size())[rank], out, compiles=compiles)


def plan(sequence_parallel: bool, use_local_output: bool = True) -> dict[str, Any]:
    if not sequence_parallel:
        return {"up": ColwiseParallel(use_local_output=use_local_output), "down": RowwiseParallel()}
    return {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "out": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
        ),
    }


def tensor_parallel(rank: int, out: Path, compiles: bool = False) -> None:
    # In compiled code, plain tensors do not know of which DTensor they are parts.
    model = parallelize_module(Model(), mesh_of((size(),), ("tp",)), plan(False, not compiles))
    train(model, samples(), out, compiles=compiles)


class SequenceModel(Model):
    """The residual stream is a DTensor, cut along the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.tensor import distribute_tensor

        mesh: Any = self.mesh
        x = distribute_tensor(x, mesh, [Shard(1)])
        return super().forward(x)


def sequence_parallel(rank: int, out: Path) -> None:
    mesh = mesh_of((size(),), ("tp",))
    model: Any = parallelize_module(SequenceModel(), mesh, plan(True))
    model.mesh = mesh
    train(model, samples(), out)


def fsdp2_tp(rank: int, out: Path) -> None:
    mesh = mesh_of((2, 2), ("dp", "tp"))
    model = parallelize_module(Model(), mesh["tp"], plan(False))
    fully_shard(model, mesh=mesh["dp"])
    train(model, samples().chunk(2)[rank // 2], out)


class Stage(nn.Module):
    """Some of the layers of a pipeline, by the names that they have in the whole."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = {str(i): nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for i in range(LAYERS)}
        self.layers = nn.ModuleDict({str(i): layers[str(i)] for i in range(first, end)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def mean_square(y: Tensor, target: Tensor) -> Tensor:
    return (y - target).square().mean()


def pipeline(rank: int, out: Path, interleaved: bool) -> None:
    stages = 2 * size() if interleaved else size()
    layers = LAYERS // stages
    mine = range(rank, stages, size())
    parts = [Stage(i * layers, (i + 1) * layers) for i in mine]
    made = [
        PipelineStage(part, i, stages, torch.device("cpu"))
        for i, part in zip(mine, parts, strict=True)
    ]
    schedule: Any
    if interleaved:
        schedule = ScheduleInterleaved1F1B(list(made), n_microbatches=size(), loss_fn=mean_square)
    else:
        schedule = Schedule1F1B(made[0], n_microbatches=size(), loss_fn=mean_square)
    model = nn.Module()
    model.layers = nn.ModuleDict({k: v for part in parts for k, v in part.layers.items()})
    optimizer = SGD(model.parameters(), lr=0.1)
    x = samples()
    with hs.watch(model, optimizer, kinds=KINDS, out=out) as w:
        arguments = (x,) if rank == 0 else ()
        schedule.step(*arguments, target=torch.ones_like(x) if rank == size() - 1 else None)
        optimizer.step()
        for row in w.coverage():
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
            if row.kind == "output":
                assert (row.observed, row.skipped) == (size(), {"shape inference": 1}), row


def whole(out: Path, of_pipeline: bool = False) -> hs.StepRecord:
    """The first step of one process."""
    if of_pipeline:
        model, x = Stage(0, LAYERS), samples()
        optimizer = SGD(model.parameters(), lr=0.1)
        with hs.watch(model, optimizer, kinds=KINDS, out=out):
            mean_square(model(x), torch.ones_like(x)).backward()
            optimizer.step()
    else:
        train(Model(), samples(), out)
    return hs.open_run(out)[0]


def assert_whole(merged: hs.StepRecord, one: hs.StepRecord, row: Row) -> None:
    """As the record of one process, but for what is absent."""
    assert {key for key in one if key not in merged} == {
        k for k in one if f"{k[1]} {k[0]}" in row.absent
    }
    assert set(merged) <= set(one)
    infos = {(site.name, site.kind): site for site in one.sites}
    for site in merged.sites:
        key = site.name, site.kind
        mine, other = merged[key], one[key]
        if site.channel_dim is None and infos[key].channel_dim is not None:
            other = other.per_tensor()  # of FSDP1
        else:
            described = infos[key]
            if not row.shapes:
                described = described._replace(shape=site.shape)
            assert site[:5] == described[:5], key
        for name in ("count", "nan", "posinf", "neginf", "zero"):
            np.testing.assert_array_equal(
                getattr(mine, name), getattr(other, name), str((key, name))
            )
        size = float(other.amax.max()) or 1.0
        for name in ("mean", "std", "min", "max"):
            np.testing.assert_allclose(
                getattr(mine, name),
                getattr(other, name),
                rtol=row.rtol,
                atol=row.rtol * size,
                err_msg=str((key, name)),
            )
        assert mine.tensor_hist is not None
        assert other.tensor_hist is not None
        assert int(mine.tensor_hist.slot_counts.sum()) == int(mine.count.sum())
        if site.dtype == "float32" and key in (("norm", "input"), ("norm.weight", "param")):
            assert torch.equal(mine.tensor_hist.slot_counts, other.tensor_hist.slot_counts)


class Row(NamedTuple):
    """A way to train, and what is to be known of it."""

    train: Any
    arguments: tuple[Any, ...] = ()
    options: dict[str, bool] = {}  # noqa: RUF012
    scale: float | None = None
    """The factor for gradients of outputs, as the loss of a rank or of a micro-batch is the mean of
    what it has; None for one over the number of ranks."""
    said: bool = True
    """Whether the header says the factor."""
    absent: frozenset[str] = frozenset()
    shapes: bool = True
    """Whether ranks can tell the shape of the whole; not of micro-batches, of which they note the
    last alone, nor where nothing says which dimension is cut."""
    rtol: float = 1e-5
    sizes: tuple[int, ...] = SIZES
    """On how many ranks."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Compiling takes most of a minute: `make check` has one kind of parallelism."""
    if "compiled" not in name:
        return []
    return [pytest.mark.slow if name.startswith("DDP") else pytest.mark.full]


ROWS = {
    "DDP": Row(ddp),
    "DDP, static graph": Row(ddp, options={"static_graph": True}),
    "DDP, unused parameters": Row(ddp, options={"find_unused_parameters": True}),
    "DDP, bucket views": Row(ddp, options={"gradient_as_bucket_view": True}),
    "DDP with checkpoints": Row(ddp, options={"checkpoints": True}),
    "DDP, no_sync": Row(ddp_no_sync, shapes=False),
    "DDP, compiled": Row(ddp, (True,)),
    "ZeRO": Row(zero),
    "data parallelism by hand": Row(by_hand, said=False),
    "sequences cut by hand": Row(sequence_by_hand, said=False, shapes=False),
    "context parallelism": Row(context_parallel),
    "FSDP1": Row(fsdp1, (True,)),
    "FSDP1, hybrid": Row(fsdp1_hybrid, sizes=(4,)),
    "FSDP2": Row(fsdp2),
    "FSDP2 with checkpoints": Row(fsdp2, options={"checkpoints": True}),
    "FSDP2, bf16": Row(fsdp2, options={"half": True}, rtol=0.03),
    "FSDP2, compiled": Row(fsdp2, options={"compiles": True}),
    "HSDP": Row(fsdp2, ((2, 2),), sizes=(4,)),
    "tensor parallelism": Row(tensor_parallel, scale=1.0),
    "tensor parallelism, compiled": Row(tensor_parallel, (True,), scale=1.0),
    "pipeline, 1F1B": Row(pipeline, (False,), said=False, shapes=False),
    "pipeline, interleaved": Row(pipeline, (True,), said=False, shapes=False),
    "tensor and sequence parallelism": Row(
        sequence_parallel,
        scale=1.0,
        # Sums of which each rank has a summand.
        absent=frozenset({"param_grad norm.weight", "param_grad norm.bias"}),
    ),
    "FSDP2 and tensor parallelism": Row(fsdp2_tp, scale=1 / 2, sizes=(4,)),
}


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        pytest.param(each, name, marks=marks(name))
        for each in SIZES
        for name, row in ROWS.items()
        if each in row.sizes
    ],
    indirect=["ranks"],
)
def test_the_merged_run_is_that_of_one_process(ranks: Ranks, tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    scale = 1 / ranks.size if row.scale is None else row.scale
    of_ranks = list(range(ranks.size))
    ranks(partial(row.train, **row.options), tmp_path / "ranks", *row.arguments)
    of_pipeline = row.train is pipeline
    run = hs.open_run(tmp_path / "ranks", grad_scale="header" if row.said else scale)
    merged, one = run[0], whole(tmp_path / "one", of_pipeline)
    assert run.header.get("grad_scale", 1.0) == (scale if row.said else 1.0)
    assert (run.ranks, run.ranks_of(0), merged.rank) == (of_ranks, of_ranks, None)
    assert_whole(merged, one, row)
    if not row.absent:
        norm = gradient_norm(one)
        assert merged.scalars["grad_norm"] == pytest.approx(norm, rel=row.rtol)
        assert run.scalars["grad_norm"].values == pytest.approx(np.array([norm]), rel=row.rtol)
    as_seen = hs.open_run(tmp_path / "ranks")[0]
    for key in merged:
        factor = scale if key[1] == "grad_output" else 1.0
        assert torch.equal(as_seen[key].min * factor, merged[key].min)
    again = hs.open_run(tmp_path / "ranks")[0]
    assert np.array_equal(again.moments, as_seen.moments, equal_nan=True)
    # Series and tables are of the same numbers.
    series = run.series()
    table = {(r["site"], r["kind"]): r for r in run.table().to_pylist()}
    for site, tensor in zip(merged.sites, merged.whole.mean.tolist(), strict=True):
        key = site.name, site.kind
        np.testing.assert_equal(series[key].mean.tolist(), [tensor])
        np.testing.assert_equal(table[key]["mean"], tensor)
        assert table[key]["rank"] is None
        np.testing.assert_array_equal(series[key].channels.count[0], merged[key].count)


def broken(rank: int, out: Path) -> None:
    """A NaN in the samples of one rank, which the reduced gradients have on all ranks."""
    x = samples().chunk(size())[rank].clone()
    if rank == 1:
        x[0, 0, 0] = torch.nan
    train(nn.parallel.DistributedDataParallel(Model()), x, out)


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_the_first_culprit_of_all_ranks_is_named(ranks: Ranks, tmp_path: Path) -> None:
    ranks(broken, tmp_path)
    run = hs.open_run(tmp_path)
    found = hs.insight.first_nonfinite(run)
    assert found is not None
    assert (found.site, found.kind, found.nan, found.rank) == ("norm", "input", 1, None)
    assert hs.rules.replay(run)[0].message.startswith("non-finite: step 0: input of 'norm' has")
    of_first = hs.insight.first_nonfinite(run.of_rank(0))
    assert of_first is not None
    assert (of_first.kind, of_first.rank) == ("param_grad", 0)


# Updates and states of optimizers


def train_with_momentum(rank: int, name: str | None, out: Path) -> None:
    """One step of a row on this rank, or of one process, with momentum and other kinds."""
    kinds, optimizer = KINDS, SGD
    globals().update(
        KINDS=("update", "optimizer_state", "grad_input"), SGD=partial(SGD, momentum=0.9)
    )
    try:
        if name is None:
            train(Model(), samples(), out)
        else:
            row = ROWS[name]
            row.train(rank, out, *row.arguments, **row.options)
    finally:
        globals().update(KINDS=kinds, SGD=optimizer)


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "DDP",
        "FSDP1",
        "FSDP1, hybrid",
        "FSDP2",
        "HSDP",
        "tensor parallelism",
        "FSDP2 and tensor parallelism",
    ],
)
def test_updates_and_states_are_those_of_one_process(
    ranks: Ranks, tmp_path: Path, name: str
) -> None:
    ranks(train_with_momentum, name, tmp_path / "ranks")
    train_with_momentum(0, None, tmp_path / "one")
    row = ROWS[name]
    if "tensor" in name:  # of which each rank has a summand
        row = row._replace(absent=frozenset({"grad_input up"}))
    merged = hs.open_run(tmp_path / "ranks", grad_scale="header")[0]
    one = hs.open_run(tmp_path / "one")[0]
    assert ("up.weight", "optimizer_state.momentum_buffer") in one
    assert_whole(merged, one, row)


# Transparency


class Unwatched:
    """In place of a watch, there is none."""

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def coverage(self) -> list[Any]:
        return []


def train_noted(rank: int, how: str, name: str, out: Path) -> list[str]:
    """A digest of the parameters that each step of an optimizer left on this rank."""
    found: list[str] = []

    def note(optimizer: Optimizer, *_: object) -> None:
        digest = hashlib.md5()
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            local = getattr(parameter, "to_local", lambda p=parameter: p)()
            digest.update(local.detach().float().numpy().tobytes())
        found.append(digest.hexdigest())

    row, watch = ROWS[name], hs.watch
    reduces = partial(watch, reduce=hs.Reduce(timeout=120))
    handle = register_optimizer_step_post_hook(note)
    ways: dict[str, Any] = {"watched": watch, "reduced": reduces}
    hs.watch = ways.get(how, lambda *_, **__: Unwatched())
    try:
        row.train(rank, out / how, *row.arguments, **row.options)
    finally:
        hs.watch = watch
        handle.remove()
        torch.compiler.reset()
    return found


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ROWS])
def test_training_keeps_every_bit(ranks: Ranks, tmp_path: Path, name: str) -> None:
    plain = ranks(train_noted, "plain", name, tmp_path)
    assert len(plain) == ranks.size
    assert all(plain)
    assert not (tmp_path / "plain").exists()
    for how in ("watched", "reduced"):
        assert ranks(train_noted, how, name, tmp_path) == plain
        assert hs.open_run(tmp_path / how).ranks == list(range(ranks.size))
