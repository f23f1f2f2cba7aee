"""The views of records and runs in notebooks and `run.plot`, bound here by the package that draws.

Records know nothing of the code that draws them. `hookstats.show` binds its functions to their
classes, and `hookstats` sets the loader that imports `hookstats.show` when a view is first shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_views: dict[tuple[type, str], Callable[[Any], Any]] = {}
_loaders: list[Callable[[], object]] = []


def bind(shown: type[T], view: str, make: Callable[[T], Any]) -> None:
    """Have `make` produce the `view`, such as "html", of objects of the class `shown`."""
    _views[shown, view] = make


def on_first_use(load: Callable[[], object]) -> None:
    """Have `load`, which binds views, called when the first view is asked for."""
    _loaders.append(load)


def view_of(shown: object, view: str) -> Any:
    """The `view` of an object.

    Raises:
        LookupError: nothing is bound to the object's class under this name.
    """
    while _loaders:
        _loaders.pop()()
    for base in type(shown).__mro__:
        if (base, view) in _views:
            return _views[base, view](shown)
    raise LookupError(f"view = {view!r}: no such view of {type(shown).__name__}")
