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
