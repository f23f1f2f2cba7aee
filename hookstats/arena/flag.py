"""Flag: what threads wait for, and what no interrupt can break."""

from __future__ import annotations

import threading
from contextlib import suppress


class Flag:
    """Is set once, by any thread; others wait until it is.

    `threading.Event` is no such thing: an interrupt (Ctrl-C) that comes while the main thread
    enters the event's own lock leaves that locked for ever. Here every change is one operation of
    the interpreter, and a wait that nobody wakes ends with its time.
    """

    __slots__ = ("_is_set", "_wake")

    def __init__(self) -> None:
        self._is_set = False
        self._wake = threading.Lock()  # locked until the flag is set
        self._wake.acquire()

    @classmethod
    def already_set(cls) -> Flag:
        """A flag for which nobody waits."""
        flag = cls()
        flag.set()
        return flag

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._let_go()

    def wait(self, seconds: float) -> bool:
        """Whether it is set, once it is, or after `seconds`."""
        if not self._is_set and self._wake.acquire(timeout=seconds):
            self._let_go()  # others wait, too
        return self._is_set

    def _let_go(self) -> None:
        with suppress(RuntimeError):  # it is not locked any more
            self._wake.release()
