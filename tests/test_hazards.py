"""What trainings do that hooks get wrong: a test a hazard, all through `watch`.

Hazards that have tests of their own elsewhere are listed in docs/hooks.md.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from expected import assert_stats
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize, prune
from torch.optim import SGD
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import hookstats as hs
from hookstats.watch import KINDS, MODULE_KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


class Lambda(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def assert_adds_up(w: hs.Watch) -> None:
    for row in w.coverage():
        assert row.error is None, row
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row


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


def test_an_early_stop_of_a_recomputation_is_no_call() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        x = torch.randn(2, 3, requires_grad=True)
        y: Any = checkpoint.checkpoint(model, x, use_reentrant=False)
        y.sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        # What the last layer saves is known before it ends.
        assert coverage["0", "output"].skipped == {"recomputation": 1}
        assert coverage["2", "output"].skipped == {}
        assert all(coverage[name, "grad_output"].observed == 1 for name in "012")


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
        w.step()
        assert w.latest["1", "output"].count.tolist() == [2] * 3


def test_a_watch_that_begins_and_ends_inside_hooks() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    watches: list[hs.Watch] = []
    first = model[0].register_forward_hook(
        lambda *args: watches.append(hs.watch(model, optimizer, ("output", "grad_output")))
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
    with hs.watch(model, optimizer, KINDS) as outer:
        with hs.watch(model, optimizer, KINDS, bins=None, every=2) as inner:
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


def test_very_many_modules() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(3000)))
    with hs.watch(model, kinds=("output",)) as w:
        model(torch.randn(2, 3))
        w.step()
        assert len(w.latest) == len(w.coverage()) == 3000
        assert w.latest.observed.sum() == 3000


# Outputs


def test_a_generator_is_not_used_up() -> None:
    model = nn.Sequential(Lambda(lambda x: (x * i for i in range(3))), Lambda(lambda xs: sum(xs)))
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        y = model(torch.ones(2, 3))
        assert torch.equal(y, torch.full((2, 3), 3.0))
        assert w.coverage()["0", "output"].skipped == {"no tensor": 1}


def test_one_tensor_twice_in_an_output() -> None:
    model = Lambda(lambda x: [(y := x * 2), y])
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        a, b = model(torch.ones(2, 3, requires_grad=True))
        (a.sum() + 3 * b.sum()).backward()
        w.step()
        for path in ("", "[1]"):  # one tensor has one gradient, whoever used it
            assert_stats(w.latest["", f"output{path}"], [torch.full((2, 3), 2.0)], -1)
            assert_stats(w.latest["", f"grad_output{path}"], [torch.full((2, 3), 4.0)], -1)


def test_an_output_that_is_the_input() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Dropout(0.0), nn.Identity())
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        x = torch.randn(2, 3)
        y = model(x)
        y.square().sum().backward()
        w.step()
        for name in "123":
            for kind in ("output", "input"):
                assert_stats(w.latest[name, kind], [y], -1)
            for kind in ("grad_output", "grad_input"):
                assert_stats(w.latest[name, kind], [2 * y], -1)
        assert_adds_up(w)


def test_leaves_among_inputs_and_outputs_get_no_hooks() -> None:
    own = nn.Parameter(torch.ones(2, 3))
    model = nn.Sequential(nn.Identity(), Lambda(lambda x: (x * 2, own)))
    x = torch.ones(2, 3, requires_grad=True)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        for _ in range(4):
            y, again = model(x)
            (y * again).sum().backward()
            w.step()
            assert w.latest["1", "grad_output"].count.tolist() == [2] * 3
        assert not x._backward_hooks
        assert not own._backward_hooks
        coverage = w.coverage()
        assert coverage["0", "grad_output"].skipped == {"leaf": 4}
        assert coverage["1", "grad_output[1]"].skipped == {"leaf": 4}
        assert_adds_up(w)


def test_keys_that_never_come_again_do_not_fill_the_memory() -> None:
    calls = iter(range(10**6))
    model = Lambda(lambda x: {f"image {next(calls)}": x for _ in range(600)})
    with hs.watch(model, kinds=("output",), bins=None) as w:
        model(torch.ones(2, 3))
        with pytest.warns(RuntimeWarning, match="more than 1024 tensors"):
            model(torch.ones(2, 3))
        model(torch.ones(2, 3))
        w.step()
        assert len(w.latest) == 1024
        rows = w.coverage()
        assert sum(row.forwards for row in rows) == 1800
        assert rows["", "output[...]"].skipped == {"disabled": 776}


def test_an_output_that_holds_itself_disables_the_module_alone() -> None:
    def knot(x: Tensor) -> list[Any]:
        knotted: list[Any] = [x * 2]
        knotted.append(knotted)
        return knotted

    model = nn.Sequential(Lambda(knot), Lambda(lambda knotted: knotted[0] * 2))
    with hs.watch(model, kinds=("output",), bins=None) as w:
        with pytest.warns(RuntimeWarning, match=r"output.* of '0' no more: "):
            y = model(torch.ones(2, 3))
        w.step()
        assert_stats(w.latest["1", "output"], [y], -1)


def test_an_output_whose_memory_was_freed_is_skipped() -> None:
    def freed(x: Tensor) -> Tensor:
        y = x.clone()
        y.untyped_storage().resize_(0)
        return y

    model = nn.Sequential(Lambda(torch.clone))
    with hs.watch(model, kinds=("output",)) as w:
        model(torch.ones(4, 3))
        model[0].function = freed
        model(torch.ones(4, 3))
        w.step()
        row = w.coverage()["0", "output"]
        assert (row.observed, row.skipped, row.error) == (1, {"no storage": 1}, None)


# Gradients


class Expanding(torch.autograd.Function):
    """Its gradient has the strides (0, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].expand(ctx.shape)


class Negative(torch.autograd.Function):
    """Its gradient has the negative bit set."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gradient = torch.randn(4, 6, dtype=torch.complex64).conj().imag
        assert gradient.is_neg()
        return gradient


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x.square().sum(),
    "stride (0, 0)": Expanding.apply,
    "transposed": lambda x: (x.t() @ torch.randn(4, 2)).square().sum(),
    "negative bit": Negative.apply,
    "not finite": lambda x: (x * torch.tensor([torch.nan, torch.inf, 1, 0, -1, 2])).sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_odd_gradients(name: str) -> None:
    model = Lambda(lambda x: x * 2)
    x = torch.randn(4, 6, requires_grad=True)
    with hs.watch(model, kinds=("grad_output",)) as w:
        y = model(x)
        seen: list[Tensor] = []
        y.register_hook(seen.append)
        GRADIENTS[name](y).backward()
        w.step()
        assert_stats(w.latest["", "grad_output"], seen, -1)
        assert_adds_up(w)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", ["uncoalesced", "complex", "jagged"])
def test_gradients_that_cannot_be_read_are_refused_by_name(layout: str) -> None:
    match layout:
        case "uncoalesced":
            model: nn.Module = Lambda(lambda x: x * 2)
            x = torch.randn(4, 6)

            def loss(y: Tensor) -> Tensor:
                return nn.functional.embedding(torch.tensor([1, 1]), y, sparse=True).sum()

            reason = "layout sparse_coo"
        case "complex":
            model = Lambda(lambda x: x * 2)
            x = torch.randn(4, 6, dtype=torch.complex64)

            def loss(y: Tensor) -> Tensor:
                return y.abs().sum()

            reason = "dtype complex64"
        case _:
            model = nn.Linear(6, 2)
            x = torch.nested.nested_tensor(
                [torch.randn(2, 6), torch.randn(3, 6)], layout=torch.jagged
            )

            def loss(y: Tensor) -> Tensor:
                return y.values().sum()

            reason = "NestedTensor"
    with hs.watch(model, kinds=("grad_output",)) as w:
        loss(model(x.requires_grad_())).backward()
        w.step()
        row = w.coverage()["", "grad_output"]
        assert (row.forwards, row.observed, row.skipped) == (1, 0, {reason: 1})
        assert_adds_up(w)
        assert len(w.latest) == 0


def test_gradients_that_are_gone_when_the_step_closes_are_missing() -> None:
    """As where the optimizer steps in the backward, and frees each gradient right away."""
    model = network()

    def use_up(parameter: Tensor) -> None:
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(use_up)
    with hs.watch(model, kinds=("grad_output", "param_grad")) as w:
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        assert {kind for _, kind in w.latest} == {"grad_output"}
        row = w.coverage()["0.weight", "param_grad"]
        assert (row.forwards, row.observed, row.missing) == (1, 0, 1)


def test_a_parameter_that_several_modules_share_is_observed_once_a_step() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param", "param_grad")) as w:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        assert [key for key in w.latest if "weight" in key[0]] == [
            ("0.weight", "param"),
            ("0.weight", "param_grad"),
        ]
        assert model[0].weight.grad is not None
        assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)])  # the latter's output is a view
@pytest.mark.parametrize("use", ["none", "backward", "in place", "graph kept", "failure"])
def test_no_hook_keeps_a_tensor_alive(shape: tuple[int, ...], use: str) -> None:
    def broken(gradient: Tensor) -> None:
        raise RuntimeError("of the user")

    model = nn.Linear(3, 4)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        x = torch.randn(shape, requires_grad=True) * 1
        y = model(x)
        alive = [weakref.ref(tensor) for tensor in (x, y, y.untyped_storage())]
        loss = (y.mul_(2) if use == "in place" else y * 2).sum()
        if use == "failure":
            x.register_hook(broken)
            with pytest.raises(RuntimeError, match="of the user"):
                loss.backward()
        elif use != "none":
            loss.backward(retain_graph=use == "graph kept")
        w.step()
        assert w.latest["", "output"].count.sum() == y.numel()
        del x, y, loss
        # By their reference counts alone: the collector is not asked.
        assert [reference() for reference in alive] == [None] * 3


# Checkpoints


def plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def reentrant(function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=True)


def non_reentrant(function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=False)


def selective(function: Callable[..., Any], *args: Any) -> Any:
    def save_products(ctx: object, op: object, *args: object, **kwargs: object) -> Any:
        policies = checkpoint.CheckpointPolicy
        saved = op is torch.ops.aten.addmm.default
        return policies.MUST_SAVE if saved else policies.PREFER_RECOMPUTE

    def contexts() -> Any:
        return checkpoint.create_selective_checkpoint_contexts(save_products)

    return checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


CHECKPOINTS = [reentrant, non_reentrant, selective]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("inner", [plain, *CHECKPOINTS])
@pytest.mark.parametrize("outer", CHECKPOINTS)
def test_checkpoints_count_a_forward_once(
    outer: Callable[..., Any], inner: Callable[..., Any]
) -> None:
    first, second = (nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = outer(lambda x: inner(self.second, self.first(x)), x)
            return y

    model = Nested()
    x = torch.randn(2, 3, requires_grad=True)
    middle = first(x)
    y = second(middle)
    (gradient,) = torch.autograd.grad(y.square().sum(), middle, retain_graph=True)
    # Without a graph at first, its gradients are those of a recomputation.
    through = {"first.1": outer is not reentrant, "second.1": reentrant not in (outer, inner)}
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        for _ in range(2):
            model(x).square().sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        for name, values, gradients in (("first.1", middle, gradient), ("second.1", y, 2 * y)):
            assert_stats(w.latest[name, "output"], [values] * 2, -1)
            row = coverage[name, "output"]
            assert row.skipped in ({}, {"recomputation": row.forwards - 2})
            if through[name]:
                assert_stats(w.latest[name, "grad_output"], [gradients] * 2, -1)
            else:
                assert coverage[name, "grad_output"].observed == 0
        assert coverage["first.1", "output"].forwards > 2


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_shared_parameter_under_checkpoints_is_observed_once_a_step(
    how: Callable[..., Any],
) -> None:
    fc = nn.Linear(3, 3)
    model = nn.Sequential(fc, nn.Tanh(), fc)
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param_grad",)) as w:
        x = torch.randn(2, 3, requires_grad=True)
        for _ in range(2):
            x = how(model, x)
        x.sum().backward()
        optimizer.step()
        assert fc.weight.grad is not None
        row = w.coverage()["0.weight", "param_grad"]
        assert (row.forwards, row.observed, row.backwards) == (1, 1, 1)
        assert_stats(w.latest["0.weight", "param_grad"], [fc.weight.grad], 0)


# Models that change


def replaced(model: nn.Module) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def swapped(model: nn.Module) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def loaded(model: nn.Module) -> None:
    state = {key: value.double() for key, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


CONVERSIONS: list[Callable[[nn.Module], object]] = [
    lambda model: model.double(),
    replaced,
    swapped,
    loaded,
]


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_a_model_is_converted_while_it_is_watched(convert: Callable[[nn.Module], object]) -> None:
    model = network()
    with hs.watch(model, kinds=KINDS) as w:
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        kinds = w.latest.keys()
        model.zero_grad()
        convert(model)
        model(torch.randn(2, 3).double()).sum().backward()
        w.step()
        assert w.latest.keys() == kinds
        assert {site.dtype for site in w.latest.sites} == {"float64"}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert_stats(w.latest[name, "param"], [parameter], 0)
            assert_stats(w.latest[name, "param_grad"], [parameter.grad], 0)
        assert_adds_up(w)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("how", ["parametrization", "pruning"])
def test_a_parameter_that_gets_another_name_while_it_is_watched(how: str) -> None:
    model = network()
    weight = model[0].weight
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=("param", "param_grad", "output")) as w:
        if how == "pruning":
            prune.l1_unstructured(model[0], "weight", 0.5)
        else:
            parametrize.register_parametrization(model[0], "weight", Doubled())
        y = model[0](torch.randn(2, 3))
        y.sum().backward()
        values = weight.detach().clone()
        optimizer.step()
        assert weight.grad is not None
        assert_stats(w.latest["0", "output"], [y], -1)
        assert_stats(w.latest["0.weight", "param"], [values], 0)
        assert_stats(w.latest["0.weight", "param_grad"], [weight.grad], 0)


def test_a_parameter_that_is_gone_is_said_to_be() -> None:
    model = network()
    with hs.watch(model, kinds=("param",)) as w:
        w.step()
        del model[0].weight
        with pytest.warns(RuntimeWarning, match=r"param of '0\.weight' no more: LookupError: the"):
            w.step()
        w.step()
        assert [name for name, _ in w.latest] == ["0.bias", "2.weight", "2.bias"]


def test_a_module_is_deleted_or_replaced_while_it_is_watched() -> None:
    model = network()
    with hs.watch(model, kinds=KINDS) as w:
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        del model[1]
        model[0] = nn.Linear(3, 4)
        gc.collect()
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        assert {name for name, _ in w.latest} == {"1", "2", "2.weight", "2.bias"} - {"1"}


def test_functional_calls_are_calls() -> None:
    model = network()
    x = torch.randn(2, 3)
    given = {name: 2 * p.detach() for name, p in model.named_parameters()}
    for parameter in given.values():
        parameter.requires_grad_()
    with hs.watch(model, kinds=KINDS) as w:
        y = torch.func.functional_call(model, given, x)
        y.square().sum().backward()
        w.step()
        assert_stats(w.latest["2", "output"], [y], -1)
        assert_stats(w.latest["2", "grad_output"], [2 * y], -1)
        # The module's own parameters had no part in it.
        assert_stats(w.latest["2.bias", "param"], [model[2].bias], 0)
        assert w.coverage()["2.bias", "param_grad"].missing == 1


def test_a_lazy_model_that_steps_before_it_has_parameters() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with hs.watch(model, kinds=KINDS) as w:
        w.step()
        model(torch.randn(5, 3)).square().sum().backward()
        w.step()
        assert_stats(w.latest["0.weight", "param"], [model[0].weight], 0)
        assert_adds_up(w)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 3))])
def test_a_scripted_part_is_said_to_be_out_of_reach(make: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(make(nn.Linear(3, 4)), nn.Tanh())
    x = torch.randn(2, 3)
    with pytest.warns(RuntimeWarning, match="model: '0': a ScriptModule takes no hooks"):
        w = hs.watch(model, kinds=KINDS)
    with w:
        model(x).sum().backward()
        w.step()
        assert {name for name, _ in w.latest} == {"1", "0.weight", "0.bias"}
        assert w.coverage()["0", "output"].forwards == 0
        assert_stats(w.latest["0.weight", "param"], [model[0].weight], 0)


# Tensors that are not what they seem


def test_fake_tensors_are_skipped() -> None:
    model = network()
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        with FakeTensorMode(allow_non_fake_inputs=True):
            y = model(torch.randn(2, 3))
            y.sum().backward()
        model.zero_grad()
        row = w.coverage()["0", "output"]
        assert (row.forwards, row.skipped) == (1, {"FakeTensor": 1})
        assert w.coverage()["0", "grad_output"].skipped == {"FakeTensor": 1}
        assert_adds_up(w)


def test_a_meta_model_has_no_statistics() -> None:
    with torch.device("meta"):
        model = network()
        x = torch.randn(2, 3)
    with hs.watch(model, kinds=KINDS) as w:
        model(x).sum().backward()
        w.step()
        assert len(w.latest) == 0
        assert w.coverage()["0", "output"].skipped == {"meta tensor": 1}
        assert w.coverage()["0.weight", "param_grad"].skipped == {"meta tensor": 1}
        assert_adds_up(w)


class Wrapper(Tensor):
    """A subclass that works on a tensor inside it, as those of quantisation libraries do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        wrapper: Wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = [a.inner if isinstance(a, Wrapper) else a for a in args]
        out = func(*unwrapped, **(kwargs or {}))
        return Wrapper(out) if isinstance(out, Tensor) else out


def test_unknown_subclasses_are_refused_by_name() -> None:
    model = Lambda(lambda x: x * 2)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        model(Wrapper(torch.randn(2, 3)))
        coverage = w.coverage()
        assert coverage["", "input"].skipped == {"Wrapper": 1}
        assert coverage["", "output"].skipped == {"Wrapper": 1}
        assert_adds_up(w)


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
        w.step()  # starts the flush thread, which the workers do not have
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


# What a thousand steps leave behind


@dataclass
class Output:
    logits: Tensor
    aux: list[Tensor]


def everything() -> tuple[nn.Module, tuple[int, ...]]:
    """Views changed in place, checkpoints, containers, keyword arguments, recurrence."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)
            self.flat = nn.Flatten()
            self.relu = nn.ReLU(inplace=True)
            self.block = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
            self.lstm = nn.LSTM(64, 8, batch_first=True)
            self.head = Lambda(lambda x, *, mask: Output(x * mask, [x.mean(), x.sum()]))

        def forward(self, x: Tensor) -> Tensor:
            y = self.flat(self.fc(x))
            y += 1
            y = self.relu(y)
            y = checkpoint.checkpoint(self.block, y, use_reentrant=False)
            z, _ = self.lstm(y[:, None])
            out = self.head(z, mask=z.detach() > 0)
            loss: Tensor = out.logits.sum() + out.aux[0]
            return loss

    return Model(), (8, 4, 16)


class Training:
    """Steps of `everything`."""

    def __init__(self, *, watched: bool, backward: bool = True) -> None:
        torch.manual_seed(0)
        self.model, shape = everything()
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        bins = hs.LinearBins(8, -1, 1)
        self.watch = (
            hs.watch(self.model, self.optimizer, KINDS, bins=bins, channel_bins=bins)
            if watched
            else None
        )
        self.x = torch.randn(shape)
        self.backward = backward

    def step(self) -> None:
        loss = self.model(self.x)
        if self.backward:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        elif self.watch is not None:
            self.watch.step()

    def close(self) -> None:
        if self.watch is not None:
            assert_adds_up(self.watch)
            assert self.watch.latest.step > 0
            self.watch.close()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def growth(backward: bool) -> None:
    """Print, after each 100 of 1,000 steps, how much there is of what a step may leave behind."""
    torch.set_num_threads(1)
    training = Training(watched=True, backward=backward)
    assert training.watch is not None
    seen = []
    for i in range(1, 1001):
        training.step()
        if i % 100 == 0:
            assert training.watch.latest.step == i - 1  # nothing is in the queue
            gc.collect()
            tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            seen.append((tensors, sys.getallocatedblocks(), resident_bytes()))
    training.close()
    print(json.dumps(seen))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is resident")
@pytest.mark.parametrize("backward", [True, False])
def test_a_thousand_steps_leave_nothing_behind(backward: bool, hooks_in: str) -> None:
    # In a process of its own: other tests' memory is given back whenever it pleases.
    done = subprocess.run(
        [sys.executable, "-c", f"import test_hazards; test_hazards.growth({backward})"],
        cwd=Path(__file__).parent,
        env={**os.environ, "HOOKSTATS_HOOKS": hooks_in},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tensors, blocks, resident = zip(*json.loads(done.stdout), strict=True)
    assert tensors[1:] == tensors[1:2] * 9
    # One object a step would be 300 more; caches of Python's fill up in the first hundreds.
    assert blocks[-1] - blocks[-4] < 200
    # The smallest activation kept would be 2 KiB a step, the state of a site more.
    assert resident[-1] - resident[1] < 1 << 20


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


FREE = {"aten.detach.default", "aten.as_strided.default"}
"""Besides its own, hookstats calls these operators, which allocate nothing and wait for nothing."""


def test_a_hundred_steps_call_no_operator_that_allocates_or_waits() -> None:
    def calls(watched: bool) -> Counter[str]:
        training = Training(watched=watched)
        training.step()
        with Counting() as mode:
            for _ in range(100):
                training.step()
        training.close()
        return mode.calls

    plain = calls(watched=False)
    assert plain["aten.addmm.default"] >= 100
    more = calls(watched=True) - plain
    assert {name for name in more if not name.startswith("hookstats.")} <= FREE


def test_a_hundred_steps_allocate_nothing() -> None:
    """Nor do the kernels, whose memory no dispatch mode sees."""

    def allocations(watched: bool) -> Counter[int]:
        training = Training(watched=watched)
        training.step()
        cpu = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
            for _ in range(100):
                training.step()
        training.close()
        results = profile.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
        return Counter(size for size in sizes if size > 0)

    plain = allocations(watched=False)
    assert sum(plain.values()) > 100
    assert allocations(watched=True) - plain == Counter()
