"""Locks that are always released, even if Ctrl-C arrives while they are acquired; the guard.

Python handles signals after calls of C. Up to 3.13 that of `__enter__` in a `with` is no such call;
from 3.14 on it is, and an interrupt that comes then finds no `__exit__` to call: the lock stays
locked for ever. After calls of Python it handles none. Therefore `__enter__` is Python there, which
undoes what it did. `__exit__` stays C: where a function of Python begins, signals are handled, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

IS_NEEDED = sys.version_info >= (3, 14)
"""Whether this Python needs `Whole`."""


class Whole:
    """Context: another one, of C, that is entered wholly or not at all."""

    __slots__ = ("__exit__", "_depth", "_enter")

    def __init__(self, context: AbstractContextManager[object], depth: Callable[[], int]) -> None:
        """depth: how often this thread has entered the context and not left it."""
        self._enter = context.__enter__
        self._depth = depth
        self.__exit__: Callable[..., bool | None] = context.__exit__

    def __enter__(self) -> None:
        before = self._depth()
        try:
            self._enter()
        except BaseException:
            if self._depth() > before:
                self.__exit__(None, None, None)
            raise


def whole(
    context: AbstractContextManager[object], depth: Callable[[], int]
) -> AbstractContextManager[object]:
    """`context`, or what is entered instead of it where Python needs it."""
    return Whole(context, depth) if IS_NEEDED else context


def lock() -> AbstractContextManager[object]:
    """A lock that a thread may take several times."""
    made: Any = threading.RLock()
    return Whole(made, made._recursion_count) if IS_NEEDED else made


class Guard:
    """Context of what hooks do, under the double buffer's lock: tells if anything broke into it.

    An interrupt at any line, `__enter__` and `__exit__` included, leaves it broken or untouched.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = 0

    def __enter__(self) -> None:
        self._open += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._open -= 1

    @property
    def is_broken(self) -> bool:
        """Whether a block did not end; asked under the lock, outside of all blocks."""
        return self._open > 0

    def mend(self) -> None:
        """Forget the blocks that did not end."""
        self._open = 0
