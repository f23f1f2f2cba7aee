"""What edits are refused for: changes in place, results that do not fit, bad arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from support.modules import Lambda, double
from torch import Tensor, nn

from hookstats.tensors.edit import edit
from hookstats.tensors.editor import EditError

IN_PLACE: Mapping[str, Callable[[Tensor], Tensor | None]] = {
    "operator": lambda t: t.__imul__(2),
    "method": lambda t: (t.mul_(2), None)[1],
    "a part": lambda t: (t[:1].zero_(), None)[1],
    "detached": lambda t: t.detach().mul_(2),
    "out": lambda t: torch.mul(t.detach(), 2, out=t.detach()),
    "and another": lambda t: t.add_(1) * 2,
}


def without_gradients(t: Tensor) -> None:
    with torch.no_grad():
        t.mul_(2)


@pytest.mark.parametrize("kind", ["output", "input", "grad_output", "gradient"])
@pytest.mark.parametrize(
    "function", [*IN_PLACE.values(), without_gradients], ids=[*IN_PLACE, "no_grad"]
)
def test_changes_in_place_are_refused(function: Callable[[Tensor], Any], kind: str) -> None:
    module = Lambda(lambda x: x * 3)
    x = torch.ones(2, requires_grad=True)
    if kind == "gradient":
        place = r"gradient of a tensor of shape \(2,\)"
        edit(x, function)
    else:
        place = rf"{kind} of Lambda\(\)"
        edit(module, function, kind)
    message = (
        rf"{place}: .* \(.*test_edit_refusals\.py:\d+\) changed its tensor in place.*return x \* 2"
    )
    with pytest.raises(EditError, match=message):
        module(x * 1).backward(torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("kind", ["output", "input", "grad_output", "gradient"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda t: t[:1], r"shape \(1,\), torch.float32, on cpu; expected shape \(2,\)"),
        (lambda t: t.sum(), r"shape \(\), "),
        (lambda t: t.double(), r"torch.float64.*expected.*torch.float32"),
        (lambda t: t.to("meta"), "on meta; expected .* on cpu"),
        (lambda t: 2.0, "returned 2.0; expected a torch.Tensor or None"),
        (lambda t: (t, t), "returned .tensor"),
    ],
)
def test_what_does_not_fit_is_refused(
    result: Callable[[Tensor], Any], message: str, kind: str
) -> None:
    module = Lambda(lambda x: x * 3)
    x = torch.ones(2, requires_grad=True)
    if kind == "gradient":
        edit(x, result)
    else:
        edit(module, result, kind)
    with pytest.raises(EditError, match=message) as caught:
        module(x * 1).sum().backward()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_an_edit_that_raises_goes_to_the_caller(kind: str) -> None:
    def fail(t: Tensor) -> Tensor:
        raise ZeroDivisionError("of the user")

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with edit(model[1], fail, kind), pytest.raises(ZeroDivisionError, match="of the user"):
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.Linear(1, 1), double, "outputs"), "did you mean 'output'"),
        ((nn.Linear(1, 1), double, "grad_input"), r"edit\(tensor, fn\)"),
        ((nn.Linear(1, 1), double, "param"), "kind = 'param': expected one of output, input"),
        ((nn.Linear(1, 1), double, 3), "kind = 3"),
        ((nn.Linear(1, 1), double, "fake:output"), "kind = 'fake:output': expected one of"),
        ((nn.Linear(1, 1), double, "output logits"), "kind = "),
        ((nn.Linear(1, 1), None), "fn = None: expected a callable"),
        (("layer", double), "target = 'layer'"),
        ((torch.ones(2), double), "requires no gradient"),
        (
            (nn.Parameter(torch.ones(2)), double, "input"),
            "kind = 'input': expected none for a tensor",
        ),
        (
            (nn.Parameter(torch.ones(2)), double, "output"),
            "kind = 'output': expected none for a tensor",
        ),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edit(*arguments)


def test_scripted_modules_are_refused() -> None:
    with pytest.raises(ValueError, match="a ScriptModule takes no hooks"):
        edit(torch.jit.script(nn.Linear(1, 1)), double)
