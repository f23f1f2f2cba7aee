"""What training does that hooks get wrong: failing calls, several watches, threads, processes.

Hazards that have tests of their own elsewhere are listed in docs/hazards.md.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from support.expected import assert_adds_up, assert_stats
from support.modules import Lambda, network
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.watching.settings import KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


# Hooks


def test_module_backward_hooks_are_never_used() -> None:
    model = network()
    with hs.watch(model, kinds=KINDS):
        for module in model.modules():
            assert not module._backward_hooks
            assert not module._backward_pre_hooks
            assert not module._forward_hooks_always_called


def test_a_forward_that_raises_is_no_call() -> None:
    """A hook with always_call would run, and see the exception that ends a recomputation early."""

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("of the user")

    model = nn.Sequential(nn.Linear(3, 3), Lambda(broken))
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        with pytest.raises(RuntimeError, match="of the user"):
            model(torch.randn(2, 3))
        coverage = w.coverage()
        assert coverage["1", "output"].forwards == coverage["1", "grad_output"].forwards == 0
        assert coverage["0", "output"].observed == coverage["1", "input"].observed == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_hook_reaches_the_user_and_blocks_no_one(
    interrupt: type[BaseException],
) -> None:
    class Interrupting(dict[str, Tensor]):
        """As if a signal came, once, while the hook walks the output."""

        came = False

        def items(self) -> Any:
            if not Interrupting.came:
                Interrupting.came = True
                raise interrupt
            return super().items()

    model = nn.Sequential(Lambda(lambda x: Interrupting(x=x)), Lambda(lambda d: d["x"] * 2))
    with hs.watch(model, kinds=("output",)) as w:
        with pytest.raises(interrupt):
            model(torch.randn(2, 3))
        thread = threading.Thread(target=model[1], args=({"x": torch.randn(2, 3)},), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        w.step()  # that of the interrupt, which may be lost
        model[1]({"x": torch.randn(2, 3)})
        w.step()
        assert w.latest["1", "output"].count.tolist() == [2] * 3


def test_a_watch_that_begins_and_ends_inside_hooks() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    watches: list[hs.Watch] = []
    first = model[0].register_forward_hook(
        lambda *args: watches.append(hs.watch(model, optimizer, kinds=("output", "grad_output")))
    )
    y = model(torch.randn(2, 3))
    first.remove()
    y.sum().backward()
    optimizer.step()
    (w,) = watches
    assert {name for name, _ in w.latest} == {"1", "2"}
    last = model[1].register_forward_hook(lambda *args: w.close())
    model(torch.randn(2, 3)).sum().backward()
    last.remove()
    assert w.latest.step == 0
    assert not any(module._forward_hooks for module in model.modules())


def test_watches_of_one_model_do_not_see_each_other() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 5, 3)
    with hs.watch(model, optimizer, kinds=KINDS) as outer:
        with hs.watch(model, optimizer, kinds=KINDS, bins=None, every=2) as inner:
            for _ in range(3):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            assert inner.latest.step == outer.latest.step == 2
            for key in outer.latest:
                mine, other = outer.latest[key], inner.latest[key]
                assert torch.equal(mine.tallies, other.tallies)
                assert torch.equal(mine.moments, other.moments)
            assert_adds_up(inner)
        optimizer.step()
        assert outer.latest.step == 3
        assert_adds_up(outer)


# Threads and processes


def test_replicas_in_threads_share_their_sites() -> None:
    """As nn.DataParallel runs them: shallow copies, which have the hooks of the original."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    replicas = []
    for _ in range(4):
        layers = [layer._replicate_for_data_parallel() for layer in model]
        for mine, original in zip(layers, model, strict=True):
            for name, parameter in original.named_parameters(recurse=False):
                setattr(mine, name, parameter * 1)
        replicas.append(layers)
    xs = [torch.randn(6, 3) for _ in replicas]
    outputs: list[Any] = [None] * len(replicas)

    def run(i: int) -> None:
        for _ in range(20):
            outputs[i] = replicas[i][1](replicas[i][0](xs[i]))
            outputs[i].square().sum().backward(retain_graph=True)

    assert model[0]._forward_hooks == {}
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        for layers, original in zip(replicas, [model] * 4, strict=True):
            for mine, theirs in zip(layers, original, strict=True):
                mine._forward_hooks = theirs._forward_hooks
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(replicas))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        w.step()
        assert_adds_up(w)
        assert_stats(w.latest["1", "output"], outputs * 20, -1)
        assert_stats(w.latest["1", "grad_output"], [2 * y for y in outputs] * 20, -1)


class Features(Dataset[Tensor]):
    """Runs a watched model in the workers of a DataLoader."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Tensor:
        y: Tensor = self.model(torch.full((64, 3), float(i)))
        return y.detach()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_workers_run_the_model_and_change_nothing_here() -> None:
    model = network()
    with hs.watch(model, kinds=("output",)) as w:
        model(torch.randn(2, 3))
        w.step()  # starts the recorder, which the workers do not have
        assert w.latest.step == 0
        loader = DataLoader(
            Features(model), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60
        )
        batches = list(loader)
        expected = torch.stack([Features(model)[i] for i in range(8)])
        assert torch.equal(torch.cat(batches), expected)
        model(torch.randn(2, 3))
        w.step()
        assert w.latest["0", "output"].count.tolist() == [2 + 8 * 64] * 4
        assert w.coverage().failures == {}
