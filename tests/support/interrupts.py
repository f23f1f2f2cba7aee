"""Raises an error at one chosen line of hookstats' Python, as Ctrl-C would, or by a real signal,
after a time."""

from __future__ import annotations

import dis
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import hookstats

_PACKAGE = str(Path(hookstats.__file__).parent)


class Interrupt:
    """Context: raises `error` when hookstats begins the `at`-th line that this thread executes.

    `at` = 0 raises nothing. `lines` counts, and `where` says what was interrupted.
    """

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at = at
        self.error = error
        self.lines = 0
        self.where = ""
        self.reached = False
        """Whether the error ended the block, rather than being caught in it."""

    def __enter__(self) -> Interrupt:
        sys.settrace(self._trace)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        sys.settrace(None)
        self.reached = exc_type is self.error and str(exc) == "injected"
        return self.reached

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A call: have its lines counted if it is of hookstats."""
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        leaving = _leaves(frame.f_code)

        def count(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line" and frame.f_lasti not in leaving:
                self.lines += 1
                if self.at == self.lines:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise self.error("injected")
            return count

        return count


class Alarm:
    """Raises KeyboardInterrupt in the main thread at a random moment, as Ctrl-C does."""

    def __init__(self) -> None:
        self._armed = False
        signal.signal(signal.SIGALRM, self._ring)

    def set(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def off(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


_leaving: dict[int, tuple[CodeType, frozenset[int]]] = {}  # by the code's id: to hash it is slow


def _leaves(code: CodeType) -> frozenset[int]:
    """The offsets of instructions that begin the call of __exit__ at the regular end of a with.

    A line event comes there, at which an error would keep a lock for ever. A signal does not:
    CPython handles signals after calls, and that of __exit__ is the next one.
    """
    if id(code) not in _leaving:
        every = list(dis.get_instructions(code))
        four = zip(every, every[1:], every[2:], every[3:], strict=False)
        found = [
            # What is returned is put aside first.
            (before if before.opname in ("SWAP", "ROT_TWO") else group[0]).offset
            for before, *group in four
            if group[0].opname == "LOAD_CONST"
            and all(i.argval is None for i in group)
            and all(i.opname in ("LOAD_CONST", "DUP_TOP") for i in group[1:])  # Python 3.10's
        ]
        _leaving[id(code)] = code, frozenset(found)
    return _leaving[id(code)][1]
