"""capture: what training does that hooks get wrong: checkpoints, memory, threads, failures."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import CHECKPOINTS, non_reentrant, reentrant
from support.expected import assert_adds_up
from support.modules import Lambda
from support.zoo import MODELS, assert_same, train
from torch import Tensor, distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.tensors.capture_handles import Capture
from hookstats.tensors.captured import CapturedCall

# Transparency


@pytest.mark.parametrize(
    "limits", [{}, pytest.param({"calls": 2, "clone": False}, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_is_not_changed_by_a_bit(name: str, limits: dict[str, Any]) -> None:
    captures: list[Capture] = []

    def observe(model: nn.Module) -> Capture:
        captures.append(hs.capture(model, kinds=MODULE_KINDS, **limits))
        return captures[0]

    assert_same(train(name, False, observe=observe), train(name, False))
    (c,) = captures
    assert_adds_up(c)
    assert c.nbytes > 0
    # Wherever watch saw gradients, so does capture.
    if "reentrant" not in name:
        assert any(row.observed for row in c.coverage() if row.kind == "grad_output")


def test_outputs_are_the_same_objects_and_module_backward_hooks_are_not_used() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    model = nn.Identity()
    with hs.capture(model, kinds=MODULE_KINDS):
        assert model(x) is x
        assert not model._backward_hooks
        assert not model._backward_pre_hooks


def test_dispatch_modes_do_not_see_it() -> None:
    class Log(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.called: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.called.append(str(func))
            return func(*args, **(kwargs or {}))

    def called(captured: bool) -> list[str]:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        c = hs.capture(model, kinds=MODULE_KINDS) if captured else None
        with Log() as log:
            model(torch.ones(2, 4, 3)).sum().backward()
        if c is not None:
            assert c["0", "grad_output"][0] is not None
            c.close()
        return log.called

    assert called(captured=True) == called(captured=False)


# Memory


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)])  # the latter's output is a view
@pytest.mark.parametrize("use", ["none", "backward", "in place", "graph kept"])
def test_no_hook_keeps_a_tensor_alive(shape: tuple[int, ...], use: str) -> None:
    model = nn.Linear(3, 4)
    with hs.capture(model, kinds=MODULE_KINDS):
        x = torch.randn(shape, requires_grad=True) * 1
        leaf = torch.randn(shape, requires_grad=True)
        y, z = model(x), model(leaf)
        alive = [weakref.ref(tensor) for tensor in (x, y, y.untyped_storage(), leaf, z)]
        loss = (y.mul_(2) if use == "in place" else y * 2).sum() + z.sum()
        if use != "none":
            loss.backward(retain_graph=use == "graph kept")
        del x, y, z, leaf, loss
        # By their reference counts alone: the collector is not asked.
        assert [reference() for reference in alive] == [None] * 5


def test_a_capture_does_not_keep_the_model() -> None:
    model = nn.Linear(3, 3)
    alive = weakref.ref(model)
    c = hs.capture(model, key=lambda name, module: name)
    model(torch.ones(1, 3))
    del model
    gc.collect()
    assert alive() is None
    assert len(c["", "output"]) == 1
    c.close()


def test_a_stale_view_does_not_crash() -> None:
    def stale(x: Tensor) -> Tensor:
        base = torch.zeros(2, 3)
        view = base[0]
        base.add_(x)  # the view's grad_fn is out of date now
        return view

    model = Lambda(stale)
    with hs.capture(model, include="") as c:
        model(torch.ones(3, requires_grad=True)).sum().backward()
    assert torch.equal(c["", "grad_output"][0], torch.ones(3))


# Modes


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpoints_recomputation_is_no_call(how: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3, requires_grad=True)
    model(x).square().sum().backward()
    y = model(x).detach()
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        for _ in range(2):
            how(model, x).square().sum().backward()
    assert [call.index for call in c.calls("1")] == [0, 1]
    for call in c.calls("1"):
        assert torch.equal(call.output, y)
        if how is reentrant:  # without a graph at first
            assert call.grad_output is None
        else:
            torch.testing.assert_close(call.grad_output, 2 * y)
    assert_adds_up(c)
    rows = {(row.name, row.kind): row for row in c.coverage()}
    assert rows["0", "output"].skipped == {"recomputation": 2}
    if how is reentrant:
        assert rows["1", "grad_output"].skipped["requires no gradient"] == 2
    else:
        assert rows["1", "grad_output"].observed == 2


def test_a_recomputation_of_a_module_that_is_called_twice() -> None:
    fc = nn.Linear(3, 3)
    with hs.capture(fc) as c:
        x = torch.randn(2, 3, requires_grad=True)
        y = non_reentrant(lambda x: fc(fc(x).relu_()), x)
        (y * torch.arange(3.0)).sum().backward()
        twin = fc(x)
        end = fc(twin.relu())
        first, second = torch.autograd.grad((end * torch.arange(3.0)).sum(), (twin, end))
    a, b = c.calls("")[:2]
    torch.testing.assert_close((a.grad_output, b.grad_output), (first, second))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_outputs_of_a_forward_without_a_graph(mode: Callable[[], Any]) -> None:
    model = nn.Linear(3, 3)
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        with mode():
            y = model(torch.ones(2, 3))
        model(torch.ones(2, 3)).sum().backward()
    first, _ = c["", "output"]
    assert torch.equal(first, y)
    assert not first.is_inference()  # it can be used in training
    first.mul_(nn.Parameter(torch.ones(3)).detach())
    assert c["", "grad_output"][0] is None
    assert c["", "grad_output"][1] is not None


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "trace"])
def test_transforms_are_skipped_and_counted(transform: str) -> None:
    model = nn.Tanh()
    x = torch.randn(2, 3)
    with hs.capture(model, kinds=MODULE_KINDS) as c:
        if transform == "grad":
            torch.func.grad(lambda x: model(x).sum())(x)
        elif transform == "vmap":
            torch.vmap(model)(x)
        elif transform == "jvp":
            torch.func.jvp(model, (x,), (x,))
        else:
            torch.jit.trace(model, x, check_trace=False)
    assert c.nbytes == 0
    assert_adds_up(c)
    assert sum(next(iter(c.coverage())).skipped.values()) >= 1
    if transform == "trace":
        with pytest.raises(KeyError, match=r"was not called yet.*do not count: torch\.jit\.trace"):
            c["", "output"]


def test_of_a_distributed_tensor_this_ranks_part_is_kept(tmp_path: Path) -> None:
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/x", rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)]).requires_grad_()
        b = distribute_tensor(torch.randn(6, 3), mesh, [Shard(0)])
        model = Product()
        with hs.capture(model, kinds=MODULE_KINDS) as c:
            y: Any = model(a, b)
            y.full_tensor().square().sum().backward()
        assert y.placements == (Partial(),)
        (call,) = c.calls()
        whole = y.full_tensor().detach()
        assert not isinstance(call.input[0], DTensor)
        assert torch.equal(call.input[0], a.to_local())
        assert call.output is None
        assert call.leaves("output") == {"": "DTensor Partial(sum)"}
        assert torch.equal(call.grad_output, 2 * whole)
        torch.testing.assert_close(call.grad_input[0], 2 * whole @ b.to_local().T)
    finally:
        distributed.destroy_process_group()


def test_what_cannot_be_kept_disables_the_module_alone() -> None:
    def knot(x: Tensor) -> list[Any]:
        values: list[Any] = [x * 2]
        values.append(values)
        return values

    model = nn.Sequential(nn.Tanh(), Lambda(knot), Lambda(lambda values: values[0]))
    with hs.capture(model, kinds=("output",)) as c:
        with pytest.warns(RuntimeWarning, match="no longer captures '1': RecursionError"):
            model(torch.ones(2))
        for _ in range(2):
            model(torch.ones(2))
    assert len(c["0", "output"]) == 3
    row = next(row for row in c.coverage() if row.name == "1")
    assert row.skipped["disabled"] == 2
    assert row.error is not None
    assert row.error.startswith("RecursionError")


def test_calls_that_raise_do_not_pile_up() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = Lambda(broken)
    with hs.capture(model, include="", kinds=("input", "output"), max_bytes=4) as c:
        for i in range(100):
            with suppress(ZeroDivisionError):
                model(torch.full((1,), float(i)))
        gc.collect()
        assert sum(type(one) is CapturedCall for one in gc.get_objects()) < 10
    assert c.dropped == 99


def test_modules_that_run_in_several_threads() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    failures: list[Exception] = []

    def run(i: int) -> None:
        try:
            for _ in range(25):
                x = torch.full((2, 8), float(i), requires_grad=True)
                (i * model(x)).sum().backward()
        except Exception as error:
            failures.append(error)

    with hs.capture(model, kinds=MODULE_KINDS) as c:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    calls = c.calls("0")
    assert sorted(call.index for call in calls) == list(range(100))
    expected = {i: model[0](torch.full((2, 8), float(i))).detach() for i in range(1, 5)}
    for call in calls:
        i = int(call.input[0, 0])
        torch.testing.assert_close(call.output, expected[i])
        slope = i * (1 - expected[i].tanh().square())
        torch.testing.assert_close(call.grad_output, slope, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            call.grad_input, slope @ model[0].weight.detach(), rtol=1e-5, atol=1e-6
        )
    assert_adds_up(c)


def test_replicas_of_data_parallel_are_calls_of_the_module() -> None:
    model = nn.Sequential(nn.Tanh())
    with hs.capture(model, kinds=("input", "output")) as c:
        replica = model[0]._replicate_for_data_parallel()  # it has the same hooks
        outputs = [replica(torch.ones(1)), model[0](torch.zeros(1))]
    assert list(map(float, c["0", "output"])) == list(map(float, outputs))
    assert list(map(float, c["0", "input"])) == [1, 0]
