"""What training does that hooks get wrong: failing calls, several watches, threads, many steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from support.everything import Training
from support.expected import assert_adds_up, assert_stats
from support.modules import Lambda, network, take_step
from support.paths import python_path
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.hooks.step_sample import StepSample
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
                take_step(optimizer, model(x).sum())
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


@pytest.mark.check
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is resident")
@pytest.mark.parametrize("backward", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_thousand_steps_leave_nothing_behind(backward: bool, hooks_in: str) -> None:
    # In a process of its own: other tests' memory is given back whenever it pleases.
    done = subprocess.run(
        [sys.executable, "-c", f"from support.everything import growth; growth({backward})"],
        env={**os.environ, "HOOKSTATS_HOOKS": hooks_in, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tensors, blocks, resident = zip(*json.loads(done.stdout), strict=True)
    # A record more or less may just be on its way to the disk.
    assert tensors[-1] <= max(tensors[1:4])
    # One object a step would be 300 more; caches of Python's fill up in the first hundreds.
    assert blocks[-1] - blocks[-4] < 200
    # The smallest activation kept would be 2 KiB per step, so 1.2 MiB in these 600 steps; memory is
    # flat from step 400 on, after one page or two of the allocator's came in the first hundreds.
    assert resident[-1] - resident[3] < 1 << 20


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


STEPS = 30

FREE_KINDS = tuple(kind for kind in KINDS if kind not in ("update", "checksum", "noise_scale"))
"""An update takes a copy of its parameter, as `watch` says; checksums and what the noise scale is
made of are sums by torch."""

FREE = {"aten.detach.default", "aten.as_strided.default"}
"""Besides its own, hookstats calls these operators, which allocate nothing and wait for nothing."""


DRAINED = FREE | {f"aten.{name}" for name in ("copy_.default", "lift_fresh.default")}
DRAINED |= {"aten.select.int", "aten.slice.Tensor", "hookstats.drain_.default"}
"""And these, as a step is closed on the host: they wait for nothing, either."""

OF_SAMPLE = "cat stack view mul div sub dot linalg_vector_norm split_with_sizes _to_copy"
DRAINED |= {f"aten.{name}.{of}" for name in OF_SAMPLE.split() for of in ("default", "Tensor")}
DRAINED |= {"aten._foreach_norm.Scalar", "aten._local_scalar_dense.default"}
"""And these, for the sample of the weights: they are on the host, too."""


def test_steps_call_no_operator_that_waits() -> None:
    def calls(watched: bool) -> Counter[str]:
        training = Training(watched=watched, kinds=FREE_KINDS)
        training.step()
        with Counting() as mode:
            for _ in range(STEPS):
                training.settle()
                training.step()
        training.close()
        return mode.calls

    plain = calls(watched=False)
    assert plain["aten.addmm.default"] >= STEPS
    more = calls(watched=True) - plain
    assert {name for name in more if not name.startswith("hookstats.update")} <= DRAINED


# Of torch 2.11's profiler, about itself.
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")
def test_hooks_allocate_nothing_and_a_close_ten_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the kernels, whose memory no dispatch mode sees; the sample of the weights does."""
    monkeypatch.setattr(StepSample, "before", lambda *_: None)

    def allocations(watched: bool) -> Counter[int]:
        training = Training(watched=watched, kinds=FREE_KINDS)
        training.step()
        cpu = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
            for _ in range(STEPS):
                training.settle()
                training.step()
        training.close()
        results = profile.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
        return Counter(size for size in sizes if size > 0)

    plain = allocations(watched=False)
    assert sum(plain.values()) > STEPS
    assert (allocations(watched=True) - plain).total() <= STEPS * 10
