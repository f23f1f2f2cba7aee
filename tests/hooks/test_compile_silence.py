"""Compiled calls that leave nothing are reported, once; calls that leave something are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.compiled import MARKS, Small, data, needs_gradients, ours
from torch import Tensor, fx, nn

from hookstats.watching.watch import watch

pytestmark = MARKS


def drops_operators(graph: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
    """A backend that leaves out whatever has no result, as functions without effects."""
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph.forward


def through_vmap(model: nn.Module) -> Callable[[Tensor], Any]:
    def rows(x: Tensor) -> Any:
        return torch.func.vmap(lambda row: model(row))(x)

    return torch.compile(rows, fullgraph=True, backend="aot_eager")


def through_a_lossy_backend(model: nn.Module) -> Callable[[Tensor], Any]:
    return torch.compile(model, fullgraph=True, backend=drops_operators)


@pytest.mark.parametrize("through", [through_vmap, through_a_lossy_backend])
def test_silent_compiled_code_is_reported_once(
    through: Callable[[nn.Module], Callable[[Tensor], Any]],
) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output",)) as w:
        call = through(model)
        call(data())
        assert not w.coverage().failures
        expected = r"hookstats: nothing is recorded of Linear, Tanh: compiled code .*\(.*\.py:\d+\)"
        with pytest.warns(RuntimeWarning, match=expected):
            w.step()
        for _ in range(3):  # without another warning
            call(data())
            w.step()
        coverage = w.coverage()
    assert {row.observed for row in coverage} == {0}
    assert list(coverage.failures) == ["recording Linear, Tanh in compiled code"]
    assert "left nothing" in str(coverage)


def test_classes_of_which_eager_calls_are_recorded_do_not_hide_the_silent_ones() -> None:
    model = nn.Sequential(nn.Tanh(), Small())
    with watch(model, kinds=("output",)) as w:
        model[1].compile(fullgraph=True, backend=drops_operators)
        model(data())
        with pytest.warns(RuntimeWarning, match="nothing is recorded of Linear:"):
            w.step()
        assert w.coverage()["0", "output"].observed == 1


@needs_gradients
def test_what_compiled_code_records_is_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output", "grad_output")) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data()).sum().backward()
            w.step()
        assert not w.coverage().failures
    assert not ours(recwarn)


def test_modules_that_nothing_calls_are_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Tanh()})
    with watch(model, kinds=("output",)) as w:
        torch.compile(lambda x: model["used"](x).sigmoid(), backend="aot_eager")(data())
        w.step()
        assert not w.coverage().failures
    assert not ours(recwarn)


def test_an_eager_call_of_a_class_hides_no_silent_module_of_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Small(), Small())
    with watch(model, kinds=("output",)) as w:
        model[1].compile(fullgraph=True, backend=drops_operators)
        model(data())
        expected = (
            r"hookstats: nothing is recorded of compiled calls of '1\.linear' \(Linear\): "
            r".*\(.*\.py:\d+\) leaves nothing of them; what is not compiled is recorded"
        )
        with pytest.warns(RuntimeWarning, match=expected):
            w.step()
        for _ in range(3):  # without another warning
            model(data())
            w.step()
        coverage = w.coverage()
    observed = {row.name: row.observed for row in coverage}
    assert observed == {"0": 4, "1.linear": 0, "2.linear": 4}
    assert list(coverage.failures) == ["recording compiled calls of '1.linear'"]
    assert "leaves nothing" in coverage.failures["recording compiled calls of '1.linear'"]


@pytest.mark.parametrize("through", [through_vmap, through_a_lossy_backend])
def test_its_own_eager_calls_hide_no_silent_module(
    through: Callable[[nn.Module], Callable[[Tensor], Any]],
) -> None:
    model = Small()
    with watch(model, kinds=("output",)) as w:
        through(model)(data())
        model(data())
        with pytest.warns(RuntimeWarning, match=r"compiled calls of 'linear' \(Linear\)"):
            w.step()
        assert w.coverage()["linear", "output"].observed == 1


def test_later_silence_is_reported_too() -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output",)) as w:
        call = through_a_lossy_backend(model[0])
        model[1](call(data()))
        with pytest.warns(RuntimeWarning, match="nothing is recorded of Linear:"):
            w.step()
        call = through_a_lossy_backend(model[1])
        call(data())
        with pytest.warns(RuntimeWarning, match=r"compiled calls of '1' \(Tanh\):"):
            w.step()
        assert len(w.coverage().failures) == 2


class Branches(nn.Module):
    """Calls one of two modules in the bodies of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))


class Region(nn.Module):
    """Is compiled once for all modules like it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


@pytest.mark.parametrize("make", [Branches, lambda: nn.Sequential(Region(), Region())])
def test_bodies_of_operators_run_and_are_reported(make: Callable[[], nn.Module]) -> None:
    """They may change nothing outside, so that nothing in them can be recorded."""
    model = nn.Sequential(make(), nn.Tanh())
    x = data()
    with watch(model, kinds=("output", "grad_output")) as w:
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        with pytest.warns(RuntimeWarning, match="nothing is recorded of Linear:"):
            w.step()
        assert w.coverage()["1", "output"].observed == 1
    expected = model(x)
    assert torch.equal(got, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    given = torch.autograd.grad(got.sum(), parameters, allow_unused=True)
    for one, other in zip(
        given, torch.autograd.grad(expected.sum(), parameters, allow_unused=True), strict=True
    ):
        assert (one is None or not one.any()) if other is None else torch.equal(one, other)


class Shape(nn.Module):
    """Has no tensor in its output."""

    def forward(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape)


class Shaped(nn.Module):
    """Calls a module that returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = Shape()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.reshape(self.shape(x))


def test_outputs_without_tensors_are_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    model = Shaped()
    with watch(model, kinds=("output",)) as w:
        model(data())
        w.step()
        call = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            call(data())
            w.step()
        assert not w.coverage().failures
    assert not ours(recwarn)


def test_exported_models_are_not_reported(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output",)) as w:
        model(data())
        torch.export.export(model, (data(),), strict=True)
        w.step()
        assert not w.coverage().failures
    assert not ours(recwarn)


@torch._dynamo.config.patch(suppress_errors=True)
def test_calls_that_run_uncompiled_after_all_are_not_reported(
    recwarn: pytest.WarningsRecorder,
) -> None:
    def fails(graph: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        raise NotImplementedError

    model = Small()
    with watch(model, kinds=("output",)) as w:
        torch.compile(model, backend=fails)(data())
        w.step()
        assert w.coverage()["linear", "output"].observed == 1
        assert not w.coverage().failures
    assert not ours(recwarn)
