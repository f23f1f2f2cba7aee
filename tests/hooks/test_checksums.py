"""Checksums of parameters: any bit tells, replicas that part are named, runs until they part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import torch
from support.modules import take_step
from support.ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import SGD

import hookstats as hs
from hookstats import insight
from hookstats.hooks.checksums import checksum
from hookstats.records.replicas import first_unequal

KINDS = ("output", "checksum")


def oracle(tensor: Tensor) -> int:
    """With Python's integers, word by word."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    *words, rest = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw) + 8, 8)]
    if len(raw) % 8:
        words, rest = words[:-1], words[-1]
    run = len(words) // 1024
    total = rest * 2047
    for place, word in enumerate(words):
        total += word * (2 * (place // run if place < 1024 * run else place - 1024 * run) + 1)
    total = total * 0x13C6EF372FE94F % 2**64
    return (total % 2**32 + total // 2**32 * 0x13C6EF372FE94F) % 2**53


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64],
)
@pytest.mark.parametrize("shape", [(3000,), (7,), (2, 3, 5, 41)])
def test_every_bit_that_flips_changes_it(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape).to(dtype)
    first = checksum(values)
    assert first.dtype is torch.float64
    assert int(first) == oracle(values)
    raw = values.reshape(-1).view(torch.uint8).numpy()
    for trial in torch.randint(len(raw) * 8, (100,)).tolist():
        raw[trial // 8] ^= 1 << trial % 8
        assert checksum(values) != first
        raw[trial // 8] ^= 1 << trial % 8
    assert checksum(values) == first


def test_other_layouts_are_read_in_the_order_of_their_memory() -> None:
    values = torch.randn(4, 3, 5, 2)
    last = values.to(memory_format=torch.channels_last)
    assert int(checksum(last)) == oracle(values.permute(0, 2, 3, 1))
    assert int(checksum(values[:, 1])) == oracle(values[:, 1].contiguous())
    assert int(checksum(values.flatten()[1:])) == oracle(values.flatten()[1:].clone())


def train(out: Path, flipped: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=KINDS, every=1, out=out) as w:
        for step in range(4):
            if step == flipped:
                model[2].weight.data.view(torch.int32)[0, 0] ^= 1
            take_step(optimizer, model(torch.ones(2, 4)).square().sum())
            for name, parameter in model.named_parameters():
                assert w.latest[name, "checksum"].count.tolist() == [1], parameter
        assert not w.alerts
    return model


def test_two_runs_are_equal_to_the_bit_until_they_part(tmp_path: Path) -> None:
    for name, flipped in (("a", None), ("b", None), ("c", 2)):
        train(tmp_path / name, flipped)
    assert not hs.compare(tmp_path / "a", tmp_path / "b")
    found = hs.compare(tmp_path / "a", tmp_path / "c", kinds="checksum")
    assert "2 of 4 steps; the parameters are equal to the bit until step 2" in str(found)
    assert found.first is not None
    assert found.first[1][0][:2] == ("2.weight", "checksum")
    with pytest.raises(ValueError, match="has no checksums of replicas"):
        insight.unequal_replicas(hs.open_run(tmp_path / "a"))


def test_the_odd_one_of_several_ranks_is_named() -> None:
    values = [(step, "w", None, rank, 7.0) for step in range(4) for rank in range(3)]
    assert first_unequal(values) is None
    values[7] = (2, "w", None, 1, 8.0)
    values[10] = (3, "w", None, 1, 9.0)
    found = first_unequal(reversed(values))
    assert found == (2, "w", 1, (0, 2))
    assert str(found) == "step 2: 'w' on rank 1 is not that of rank 0, 2"


class Flip(NamedTuple):
    """A bit that faulty hardware changes before a step."""

    step: int
    rank: int
    name: str
    element: int
    bit: int

    def __call__(self, model: nn.Module) -> None:
        values = model.get_parameter(self.name).data.view(torch.int32).flatten()
        values[self.element % len(values)] ^= (1 << self.bit) - (self.bit == 31) * (1 << 32)


def part(rank: int, out: Path, steps: int, flip: Flip | None = None) -> list[str]:
    """The alerts of a DDP training of so many steps."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    optimizer = SGD(model.parameters(), lr=0.01)
    arguments = {"kinds": KINDS, "every": 1, "out": out, "reduce": hs.Reduce()}
    with hs.watch(model, optimizer, **arguments) as w:  # type: ignore[arg-type]
        for step in range(steps):
            if flip and (step, rank) == flip[:2]:
                flip(model.module)
            optimizer.zero_grad()
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step + 100 * rank))
            model(inputs).tanh().square().sum().backward()
            optimizer.step()
        return [alert.message for alert in w.alerts if alert.rule == "replicas"]


def check_flip(ranks: Ranks, out: Path, steps: int, flip: Flip) -> None:
    says = f"step {flip.step}: '{flip.name}' on rank 1 is not that of rank 0"
    assert ranks(part, out, steps, flip) == [[f"replicas: {says}"]] * 2, flip
    assert str(insight.unequal_replicas(hs.open_run(out))) == says, flip


@pytest.mark.check
def test_replicas_that_part_are_named(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(part, tmp_path / "sound", 12) == [[], []]
    assert insight.unequal_replicas(hs.open_run(tmp_path / "sound")) is None
    check_flip(ranks, tmp_path / "flipped", 12, Flip(5, 1, "1.bias", 1, 10))


def hybrid(model: nn.Sequential) -> None:
    """HSDP, each rank with the whole."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)


def tensor_parallel(model: nn.Sequential) -> None:
    """Both ranks have the bias of the last layer; the rest is divided."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def part_sharded(
    rank: int, out: Path, divide: Callable[[nn.Sequential], None], flips: str | None
) -> list[str]:
    """The alerts of a training; before step 2, a bit of the parameter `flips` on rank 1 does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    divide(model)
    optimizer = SGD(model.parameters(), lr=0.01, foreach=False)
    arguments = {"kinds": KINDS, "every": 1, "out": out, "reduce": hs.Reduce()}
    with hs.watch(model, optimizer, **arguments) as w:  # type: ignore[arg-type]
        for step in range(4):
            if flips and step == 2 and rank == 1:
                own = model.get_parameter(flips).detach().to_local()  # type: ignore[attr-defined]
                own.view(torch.int32).view(-1)[1] ^= 1 << 10
            take_step(optimizer, model(torch.ones(3, 4)).square().sum())
        return [alert.message for alert in w.alerts if alert.rule == "replicas"]


@pytest.mark.check
@pytest.mark.parametrize(("divide", "name"), [(hybrid, "1.weight"), (tensor_parallel, "1.bias")])
def test_replicas_of_sharded_models_are_named(
    divide: Callable[[nn.Sequential], None], name: str, ranks: Ranks, tmp_path: Path
) -> None:
    assert ranks(part_sharded, tmp_path / "sound", divide, None) == [[], []]
    assert insight.unequal_replicas(hs.open_run(tmp_path / "sound")) is None
    says = f"step 2: '{name}' on rank 1 is not that of rank 0"
    assert ranks(part_sharded, tmp_path / "flipped", divide, name) == [[f"replicas: {says}"]] * 2
    assert str(insight.unequal_replicas(hs.open_run(tmp_path / "flipped"))) == says


@pytest.mark.slow
def test_all_of_100_flips_are_named(ranks: Ranks, tmp_path: Path) -> None:
    random = Random(0)
    names = [f"{layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")]
    for trial in range(100):
        numbers = (random.randrange(many) for many in (12, 32))
        flip = Flip(random.randrange(1, 4), random.randrange(2), random.choice(names), *numbers)
        check_flip(ranks, tmp_path / str(trial), 4, flip)
