"""Hook: the base of all hooks, and why no copy and no pickle of a model has one.

Torch keeps hooks, and marks of them, in dictionaries of type OrderedDict. `copyreg` has a function
here that says what of such a dictionary is copied or pickled: all but what belongs to hookstats. So
a pickle loads where hookstats is not installed, and with `weights_only=True`.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from types import MethodType
from typing import Any, TypeVar
from weakref import ref

from torch.utils.hooks import RemovableHandle

_Unique = TypeVar("_Unique")


class Hook:
    """A hook that belongs to one model, and to no copy or pickle of the model.

    Torch calls the hooks that were set when a call of the module began. If one of them removes
    another, torch still calls that other hook, but without keyword arguments: it has forgotten that
    the hook takes them. A removed hook is to do nothing.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        """Of a hook in a container of the user's: a callable that does nothing."""
        return getattr, (nullcontext(), "__exit__")


class Calling(Hook):
    """A hook that calls a function, and of a tensor leaves the gradient as it is."""

    __slots__ = ("_function",)
    __torch_unserializable__ = True  # a tensor is saved without the hook, and without a warning

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)


KINDS: list[type] = [Hook]
"""The types of hooks; those in C++ have another base."""


class _Mark(Hook):
    """Stands for True in a dictionary that says what torch passes to a hook."""

    __slots__ = ()


def marked(handle: RemovableHandle) -> RemovableHandle:
    """The handle of a hook, whose marks are known for those of hookstats from now on."""
    for marks in [reference() for reference in handle.extra_dict_ref]:
        if marks is not None and handle.id in marks:
            marks[handle.id] = _Mark()
    return handle


def weakly(method: Callable[..., object], keeps: object = None) -> Callable[..., None]:
    """A function that calls a bound method as long as there is its object.

    keeps: what the function keeps alive.
    """
    assert isinstance(method, MethodType)
    known, function = ref(method.__self__), method.__func__

    def call(*args: object) -> None:
        found = known()
        if found is not None:
            function(found, *args)

    call.keeps = keeps  # type: ignore[attr-defined]
    return call


class Unique:
    """A handle that a module may keep as an attribute: a deep copy has the same handle, a pickle
    has an empty OrderedDict, as it is to load without hookstats."""

    __slots__ = ()

    def __deepcopy__(self: _Unique, memo: object) -> _Unique:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return OrderedDict, ()


def _reduced(some: OrderedDict[Any, Any]) -> tuple[Any, ...]:
    """What `some.__reduce__()` is, without hooks of hookstats and their marks."""
    made: tuple[Any, ...] = some.__reduce__()  # type: ignore[assignment]
    kinds = tuple(KINDS)
    return *made[:-1], iter([item for item in made[-1] if not issubclass(type(item[1]), kinds)])


copyreg.pickle(OrderedDict, _reduced)
