"""What training does that hooks get wrong: models that change while watched, and checkpoints."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checkpoints import CHECKPOINTS, non_reentrant, plain, reentrant
from support.expected import assert_adds_up, assert_stats
from support.modules import network
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim import SGD

import hookstats as hs
from hookstats.watching.settings import KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


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
        kinds = list(w.latest)
        model.zero_grad()
        convert(model)
        model(torch.randn(2, 3).double()).sum().backward()
        w.step()
        assert list(w.latest) == kinds
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
        with pytest.warns(RuntimeWarning, match=r"param of '0\.weight': LookupError: the"):
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


def test_an_early_stop_of_a_recomputation_is_no_call() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        x = torch.randn(2, 3, requires_grad=True)
        y: Any = non_reentrant(model, x)
        y.sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        # What the last layer saves is known before it ends.
        assert coverage["0", "output"].skipped == {"recomputation": 1}
        assert coverage["2", "output"].skipped == {}
        assert all(coverage[name, "grad_output"].observed == 1 for name in "012")
