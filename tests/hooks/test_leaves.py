"""The tensors of nested values and their paths."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from support.modules import ModelOutput
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from hookstats.hooks.leaves import argument_leaves, leaves

A, B, C = (torch.tensor(float(i)) for i in range(3))
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    name: str = "x"
    unset: Tensor = field(init=False)


class Registered:
    """As a type of the user's whose parts torch.compile and torch.export know, too."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts


class Keyed:
    """As PyG's Data: has keys, and is no mapping."""

    def __init__(self, **items: object) -> None:
        self.items = items

    def __getitem__(self, key: str) -> object:
        return self.items[key]

    def keys(self) -> list[str]:
        return list(self.items)

    def to(self, device: str) -> Keyed:
        raise NotImplementedError


torch.utils._pytree.register_pytree_node(
    Registered, lambda x: (list(x.parts), None), lambda parts, _: Registered(*parts)
)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (A, {"": A}),
        (torch.nn.Parameter(A), {"": A}),
        ((A,), {"": A}),
        ([A, B], {"": A, "[1]": B}),
        ((A, (B, C)), {"": A, "[1][0]": B, "[1][1]": C}),
        (((A, B), C), {"": A, "[0][1]": B, "[1]": C}),
        ((None, A), {"[1]": A}),
        ([None] * 10 + [A], {"[10]": A}),
        ({"logits": A, "aux": B}, {".logits": A, ".aux": B}),
        ({"a b": A, 3: B, ("x", 1): C}, {"['a b']": A, "[3]": B, "[('x', 1)]": C}),
        ([{"x": A}], {"[0].x": A}),
        ({"x": (A, B)}, {".x[0]": A, ".x[1]": B}),
        (Pair(A, [B]), {".first": A, ".second[0]": B}),
        (Output(A, (B, C)), {".logits": A, ".hidden[0]": B, ".hidden[1]": C}),
        (ModelOutput(logits=A, states=B), {".logits": A, ".states": B}),
        (UserDict(x=A), {".x": A}),
        (Registered(A, B), {"": A, "[1]": B}),
        ([Registered(A, B), "x", 3], {"": A, "[0][1]": B}),
        (Keyed(x=A, edges=[B], name="x"), {".x": A, ".edges[0]": B}),
        (torch.max(torch.eye(2), 0), {"": torch.ones(2), "[1]": torch.tensor([0, 1])}),
        (None, {}),
        ("text", {}),
        ({A}, {}),
        (Output, {}),
        ((1, 2.5, object(), []), {}),
    ],
)
def test_leaves(value: object, paths: dict[str, Tensor]) -> None:
    found = list(leaves(value))
    assert [path for path, _ in found] == list(paths)
    assert all(torch.equal(tensor, paths[path]) for path, tensor in found)


def test_packed_sequence() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert [path for path, _ in leaves(packed)] == [".data", ".batch_sizes"]


def test_leaves_are_the_tensors_themselves() -> None:
    assert next(tensor for _, tensor in leaves({"a": [A], "b": B})) is A


def test_argument_leaves() -> None:
    found = argument_leaves((A, [B]), {"mask": C, "states": (A, B), "flag": True})
    assert [path for path, _ in found] == ["", "[1][0]", ".mask", ".states[0]", ".states[1]"]
    assert [path for path, _ in argument_leaves((), {"x": A})] == [".x"]


def test_paths_are_distinct() -> None:
    value = ((A, (B, {"x": C, 0: A})), [B], Pair(C, A), {"x": B, "[1]": C})
    paths = [path for path, _ in leaves(value)]
    assert len(set(paths)) == len(paths) == 9
