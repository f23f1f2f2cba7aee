"""The tensors in what a module takes and returns, each with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from hookstats._torch import registered_parts
from hookstats.records.keys import leaf_path

Leaf = tuple[str, Tensor]


def leaves(value: object) -> Iterator[Leaf]:
    """(path, tensor) of every tensor in `value`, in order; other values are left out.

    Walks tuples, lists, mappings and dataclasses (hence named tuples and ModelOutputs), objects of
    types that torch's registry of pytrees knows, and what has keys and moves to devices, as PyG's
    Data, in any nesting.
    A path is the text that leads from `value` to the tensor in Python: "[1]", ".logits", "['a b']".
    The first tensor of a sequence, and a value that is a tensor, have the path "".
    """
    return _walk(value, "")


def argument_leaves(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[Leaf]:
    """The leaves of a call's arguments: those of `args` as in `leaves`, of `kwargs` by name."""
    yield from _walk(args, "")
    for name, value in kwargs.items():
        yield from _walk(value, f".{name}")


def _walk(value: object, path: str) -> Iterator[Leaf]:
    if issubclass(type(value), Tensor):  # not isinstance, to which proxies and mocks may lie
        yield leaf_path(path), cast(Tensor, value)
    elif isinstance(value, (tuple, list)):
        names: tuple[str, ...] = getattr(value, "_fields", ())  # of a named tuple
        for i, item in enumerate(value):
            yield from _walk(item, f"{path}.{names[i]}" if names else f"{path}[{i}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, path + _key(key))
    elif value is None:
        return  # dynamo before torch 2.12 cannot ask whether it is a dataclass
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _walk(getattr(value, field.name, None), f"{path}.{field.name}")
    elif not (isinstance(value, (str, int, float)) or is_dynamo_compiling()):
        for step, item in _parts(value):
            yield from _walk(item, path + step)


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """The parts of an object of another type, and how its path goes on: as torch's registry of
    pytrees takes it apart, or, if it moves to devices as PyG's Data does, by its keys."""
    cls = type(value)
    if (registered := registered_parts(value)) is not None:
        yield from registered
    elif all(hasattr(cls, name) for name in ("keys", "__getitem__", "to")):
        for key in value.keys():  # noqa: SIM118 - no mapping: its iteration may be another
            yield _key(key), value[key]


def _key(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
