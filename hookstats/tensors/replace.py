"""with_leaves(): a nested value with other tensors in the places of its leaves."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def with_leaves(value: Any, tensors: Iterable[Tensor]) -> Any:
    """`value` with `tensors` in the places of its leaves, in the order of `leaves.leaves`.

    A container whose leaves all stay the same is returned as it is. Any other container is copied,
    never changed: the copy has the container's type and all its values that are not leaves.

    Raises:
        TypeError: a container cannot be copied with other items.
    """
    return _rebuilt(value, iter(tensors))


def _rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    if issubclass(type(value), Tensor):  # as in `leaves`
        return next(tensors)
    if isinstance(value, (tuple, list)):
        items = [_rebuilt(item, tensors) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, list):
            copied: Any = copy.copy(value)
            copied[:] = items
            return copied
        return getattr(type(value), "_make", type(value))(items)  # _make: of a named tuple
    if isinstance(value, Mapping):
        return _with_items(value, {key: _rebuilt(item, tensors) for key, item in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        return _with_fields(
            value,
            {
                field.name: _rebuilt(getattr(value, field.name), tensors)
                for field in fields(value)
                if hasattr(value, field.name)
            },
        )
    return value


def _with_items(value: Any, items: Mapping[Any, Any]) -> Any:
    changed = {key: new for key, new in items.items() if new is not value[key]}
    if not changed:
        return value
    copied = copy.copy(value)
    for key, new in changed.items():
        copied[key] = new
    if is_dataclass(value):  # ModelOutputs are mappings of their fields
        names = {field.name for field in fields(value)}
        copied = _with_fields(copied, {key: new for key, new in changed.items() if key in names})
    return copied


def _with_fields(value: Any, items: Mapping[str, Any]) -> Any:
    changed = {name: new for name, new in items.items() if new is not getattr(value, name)}
    if not changed:
        return value
    copied = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(copied, name, new)  # of a frozen one, too
    return copied
