"""Edits inside of structures: types that are kept, paths, tensors that come twice or not at all."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch
from support.modules import Lambda, double
from torch import Tensor

from hookstats.hooks.leaves import leaves
from hookstats.tensors.edit import edit
from hookstats.tensors.editor import EditError
from hookstats.tensors.replace import with_leaves

A, B, C = (torch.tensor(float(i)) for i in range(1, 4))
IDS = torch.tensor([1, 2])
Pair = namedtuple("Pair", ["first", "second"])


class Items(list[Any]):
    """A list of a type of its own."""


@dataclass(frozen=True)
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    name: str = "x"
    unset: Tensor = field(init=False)


@dataclass
class OwnModelOutput(OrderedDict[str, Any]):
    """A dataclass and a mapping of the fields that are set."""

    logits: Tensor | None = None
    states: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if value is not None:
                self[name] = value


def model_output() -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=A, hidden_states=(B, C))


STRUCTURES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: A,
    "tuple": lambda: (A, "text", B),
    "list": lambda: [A, None, [B, C]],
    "list of its own": lambda: Items([A, B]),
    "named tuple": lambda: Pair(A, [B]),
    "torch.return_types": lambda: torch.max(torch.eye(2), 0),
    "dict": lambda: {"a": A, "b c": (B,), 3: 4},
    "ordered dict": lambda: OrderedDict(a=A, b=B),
    "user dict": lambda: UserDict(a=A),
    "dataclass": lambda: Output(A, (B, C), "y"),
    "model output": lambda: OwnModelOutput(logits=A, states=B),
    "transformers": model_output,
    "with ids": lambda: (IDS, A),
    "complex": lambda: [torch.tensor([1j, 2.0])],
}
NAMES = [
    pytest.param(name, marks=pytest.mark.check) if name == "transformers" else name
    for name in STRUCTURES
]


@pytest.mark.parametrize("name", NAMES)
def test_structures_keep_their_types_and_the_original_its_tensors(name: str) -> None:
    value = STRUCTURES[name]()
    before = list(leaves(value))
    module = Lambda(lambda: value)
    edit(module, double)
    result = module()
    assert type(result) is type(value)
    after = list(leaves(result))
    assert [path for path, _ in after] == [path for path, _ in before]
    for (_, mine), (_, original) in zip(after, before, strict=True):
        if original.dtype is torch.int64:
            assert mine is original
        else:
            assert torch.equal(mine, original * 2)
    assert all(x is y for (_, x), (_, y) in zip(leaves(value), before, strict=True))
    if isinstance(value, OrderedDict) and is_dataclass(value):  # the items and the fields
        assert all(getattr(result, key) is item for key, item in result.items())
        assert list(result.keys()) == list(value.keys())
    if isinstance(value, Output):
        assert result.name == "y"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_edited_is_the_same_object(name: str) -> None:
    value = STRUCTURES[name]()
    module = Lambda(lambda: value)
    edit(module, lambda t: None)
    assert module() is value
    assert with_leaves(value, [tensor for _, tensor in leaves(value)]) is value


@pytest.mark.parametrize(
    ("kind", "edited"),
    [
        ("output", ["", "[1].x", "[2][0]"]),
        ("output[0]", [""]),
        ("output[1].x", ["[1].x"]),
        ("output[2][0]", ["[2][0]"]),
        ("output[3]", ["[3]"]),
    ],
)
def test_paths_choose_a_tensor(kind: str, edited: list[str]) -> None:
    module = Lambda(lambda: (A, {"x": B}, [C], IDS))
    edit(module, double, kind)
    for (path, mine), (_, original) in zip(
        leaves(module()), leaves(module.function()), strict=True
    ):
        assert torch.equal(mine, original * 2 if path in edited else original)


def test_the_arguments_of_a_call() -> None:
    seen: list[Any] = []
    module = Lambda(lambda *args, **kwargs: seen.append((args, kwargs)))
    edit(module, double, "input[1]")
    edit(module, lambda t: t + 10, "input.mask")
    module(A, B, mask=C, flag=True)
    ((args, kwargs),) = seen
    assert args == (A, 2 * B)
    assert kwargs == {"mask": C + 10, "flag": True}


def test_a_tensor_that_comes_twice_is_edited_once() -> None:
    y = torch.ones(2, requires_grad=True) * 1
    module = Lambda(lambda: (y, [y]))
    with edit(module, double) as handle:
        first, (second,) = module()
        assert first is second
    with edit(module, double, "grad_output") as gradient:
        first, (second,) = module()
        (first + second).sum().backward()
    assert handle.calls == gradient.calls == 1


def test_a_path_of_a_tensor_that_comes_twice_changes_that_place_alone() -> None:
    module = Lambda(lambda: (A, A))
    edit(module, double, "output[1]")
    assert module() == (A, 2 * A)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("output.logits", (A, B), r"output\.logits of Lambda\(\): .*output \(.*, output\[1\]"),
        ("output", IDS, r"no such floating-point tensor.*output \(torch\.int64\)"),
        ("output", None, "those that came: none"),
        ("grad_output[2]", (A, B), r"grad_output\[2\] of"),
        ("input[1]", A, r"input\[1\] of Lambda\(\).*those that came: input "),
    ],
)
def test_a_tensor_that_is_not_there(kind: str, output: Any, message: str) -> None:
    module = Lambda(lambda x: output)
    edit(module, double, kind)
    with pytest.raises(EditError, match=message) as caught:
        module(A)
    assert "double" not in str(caught.value)  # it was not called


def test_a_container_that_cannot_be_copied_with_another_tensor() -> None:
    module = Lambda(lambda: MappingProxyType({"a": A}))
    edit(module, double)
    with pytest.raises(EditError, match=r"output of Lambda.*container that cannot be copied"):
        module()
