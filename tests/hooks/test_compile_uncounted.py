"""Modules that compiled code calls without leaving anything are named when the watch closes."""

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
def test_compiled_modules_that_leave_nothing_are_named_at_the_end(
    through: Callable[[nn.Module], Callable[[Tensor], Any]],
) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    w = watch(model, kinds=("output",))
    call = through(model)
    for _ in range(2):
        call(data())
        w.step()
    why = "2 watched modules were compiled and never counted: '0.linear', '1'"
    with pytest.warns(RuntimeWarning, match=f"hookstats: {why}"):
        w.close()
    w.close()  # without another warning
    coverage = w.coverage()
    assert {row.observed for row in coverage} == {0}
    assert coverage.failures == {"recording compiled modules": why}
    assert why in str(coverage)


def test_what_runs_uncompiled_beside_them_is_not_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Small(), Small())
    w = watch(model, kinds=("output",))
    model[1].compile(fullgraph=True, backend=drops_operators)
    model(data())
    w.step()
    with pytest.warns(RuntimeWarning, match=r"1 watched modules were .*counted: '1\.linear';"):
        w.close()
    observed = {row.name: row.observed for row in w.coverage()}
    assert observed == {"0": 1, "1.linear": 0, "2.linear": 1}


@needs_gradients
def test_what_compiled_code_records_is_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output", "grad_output")) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data()).sum().backward()
            w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)


def test_modules_that_nothing_calls_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Tanh()})
    with watch(model, kinds=("output",)) as w:
        torch.compile(lambda x: model["used"](x).sigmoid(), backend="aot_eager")(data())
        w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)


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


@pytest.mark.parametrize(
    "make",
    [Branches, pytest.param(lambda: nn.Sequential(Region(), Region()), marks=pytest.mark.check)],
)
def test_bodies_of_operators_run_and_are_named(make: Callable[[], nn.Module]) -> None:
    """They may change nothing outside, so that nothing in them can be recorded."""
    model = nn.Sequential(make(), nn.Tanh())
    x = data()
    w = watch(model, kinds=("output", "grad_output"))
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    w.step()
    with pytest.warns(RuntimeWarning, match="2 watched modules were compiled and never counted"):
        w.close()
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


def test_outputs_without_tensors_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
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


def test_exported_models_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output",)) as w:
        model(data())
        torch.export.export(model, (data(),), strict=True)
        w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)
