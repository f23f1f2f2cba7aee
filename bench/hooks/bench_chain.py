"""What a hook costs a module: a chain of 200 modules that do next to nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor, nn

import hookstats as hs
from bench.measure import Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.turns import Rounds
from hookstats.buffers import double_buffer as accumulators
from hookstats.kernels import native

MODULES = pick(200, 20)
STEPS = 10
"""Steps that are timed at once: a round of every=10."""

ROUNDS = pick(40, 1)
SHAPE = (4, 8)


class Double(nn.Module):
    """The cheapest module that has a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


class Chain:
    """A chain without hooks."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(Double() for _ in range(MODULES)))
        # Integers, so that means are exact.
        self.x = torch.arange(32.0).reshape(SHAPE).requires_grad_()

    def prepare(self) -> None:
        self.x.grad = None

    def run(self) -> None:
        """Run STEPS forwards and backwards."""
        for _ in range(STEPS):
            self.model(self.x).sum().backward()
            self.close_step()

    def close_step(self) -> None:
        """Nothing, without a watch."""

    def check(self) -> None:
        """Assert that all gradients came through."""
        assert self.x.grad is not None
        assert self.x.grad.eq(STEPS).all()


class ForwardHooks(Chain):
    """With an empty forward hook in Python."""

    def __init__(self) -> None:
        super().__init__()
        for module in self.model:
            module.register_forward_hook(lambda module, args, output: None)


class TensorHooks(Chain):
    """With a forward hook in Python that registers an empty tensor hook."""

    def __init__(self) -> None:
        super().__init__()

        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            output.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]

        for module in self.model:
            module.register_forward_hook(hook)


class FullBackwardHooks(Chain):
    """With an empty full backward hook."""

    def __init__(self) -> None:
        super().__init__()
        for module in self.model:
            module.register_full_backward_hook(lambda module, grad_input, grad_output: None)


class Watched(Chain):
    """With the output and its gradient of every module watched."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.every: int = options.get("every", 1)
        options = {"every": self.every, **options}
        self.watch = hs.watch(self.model, kinds=("output", "grad_output"), **options)

    def close_step(self) -> None:
        self.watch.step()

    def check(self) -> None:
        super().check()
        for row in self.watch.coverage():
            assert row.forwards == row.observed == STEPS * (1 + ROUNDS) // self.every, row


class Accumulated(Watched):
    """Watched, with the step closed after all passes: the hooks alone, without the closing."""

    def run(self) -> None:
        super().run()
        self.watch.step()

    def close_step(self) -> None:
        """Not yet."""


class Recorded(Watched):
    """Watched, and what was recorded is checked."""

    def check(self) -> None:
        super().check()
        record = self.watch.latest
        for name, _ in self.model.named_children():
            assert torch.equal(record[name, "output"].mean, self.x.detach().double().mean(0))
            assert record[name, "grad_output"].mean.eq(1).all()


NO_KERNELS = (ctypes.c_void_p * 2)(ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value)
"""`Kernels` of csrc/ops/kernels.h: an update that does nothing, and no captures."""


def no_statistics() -> Watched:
    """As `Accumulated`, with kernels that do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulators, "entries", lambda size: {"cpu": ctypes.addressof(NO_KERNELS)})
        return Accumulated()


def in_python() -> Watched:
    """Watched by the Python hooks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "hooks", None)
        return Recorded()


def paused() -> Chain:
    """Watched, but paused: hooks leave modules where a step ends."""
    chain = Watched()
    chain.watch.pause()
    chain.check = partial(Chain.check, chain)  # type: ignore[method-assign]
    return chain


PEERS: Mapping[str, Callable[[], Chain]] = {
    "no hooks": Chain,
    "watch": Recorded,
    "watch, a step in 10 passes": Accumulated,
    "and no kernels": no_statistics,
    "watch every=10": partial(Recorded, every=10),
    "watch paused": paused,
    "watch, Python hooks": in_python,
    "forward hook": ForwardHooks,
    "+ tensor hook": TensorHooks,
    "full backward hook": FullBackwardHooks,
}


TABLE = Table(
    f"hooks: a chain of {MODULES} modules, forward and backward",
    "us/module",
    1e6,
    floor="no hooks",
    parts=dict.fromkeys(("forward hook", "+ tensor hook", "full backward hook"), "an empty hook"),
)


@pytest.fixture(scope="module")
def case() -> Iterator[Measured]:
    """All chains, measured in turn on one thread, as their tensors need no more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    name = "{}x{} values".format(*SHAPE)
    measured = measure(TABLE, name, STEPS * MODULES, PEERS, Rounds(0, ROUNDS))
    yield measured
    for chain in measured.peers.values():
        if isinstance(chain, Watched):
            chain.watch.close()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("peer", PEERS)
def test_chain(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
    if peer == "watch" and not SMOKE:
        assert case.case.over_floor("watch") < case.case.over_floor("full backward hook")
