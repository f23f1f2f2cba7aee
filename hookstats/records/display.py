"""What notebooks and `run.plot` show of records and runs: bound here by the package that draws.

Records stand below what draws them. `hookstats.show` binds its functions to their classes, and
`hookstats` itself sets the loader that imports `hookstats.show` when something is first shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_views: dict[tuple[type, str], Callable[[Any], Any]] = {}
_loaders: list[Callable[[], object]] = []


def bind(shown: type[T], view: str, make: Callable[[T], Any]) -> None:
    """Let `make` give the `view`, such as "html", of objects of the class `shown`."""
    _views[shown, view] = make


def on_first_use(load: Callable[[], object]) -> None:
    """Call `load`, which binds views, when the first view is asked for."""
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
