"""Raises an error at one chosen line of hookstats' Python, as Ctrl-C would, at one chosen
allocation, as a full memory would, or by a real signal, after a time."""

from __future__ import annotations

import dis
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hookstats

_PACKAGE = str(Path(hookstats.__file__).parent)
_LIBRARIES = (torch.__path__[0], np.__path__[0])


class Line(NamedTuple):
    """One line that hookstats executes, by how often it was called before."""

    call: int
    """The number of the call of a function of hookstats, from 1 on."""
    line: int
    """The number of the line among those of the call, from 1 on."""


class Interrupt:
    """Context: raises `error` when hookstats begins the `at`-th line that this thread executes.

    `at` = 0 raises nothing. `executed` has the lines, and `chains` where each was called from;
    `where` says what was interrupted.

    at: a number of lines, or a Line, which is found ten times as fast.
    """

    def __init__(self, at: int | Line, error: type[BaseException]) -> None:
        self.at = at
        self.error = error
        self.executed: list[Line] = []
        self.chains: list[tuple[int, ...]] = []
        self.calls = 0
        self.where = ""
        self.reached = False
        """Whether the error ended the block, rather than being caught in it."""

    @property
    def lines(self) -> int:
        return len(self.executed)

    def __enter__(self) -> Interrupt:
        sys.settrace(self._to if isinstance(self.at, Line) else self._trace)
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
        self.calls += 1
        call, line, leaving = self.calls, 0, _leaves(frame.f_code)

        def count(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal line
            if event == "line" and frame.f_lasti not in leaving:
                line += 1
                self.executed.append(Line(call, line))
                if self.at == 0:
                    self.chains.append(_chain(frame))
                if self.at in (self.lines, Line(call, line)):
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise self.error("injected")
            return count

        return count

    def distinct(self) -> list[Line]:
        """The lines of each chain of callers, as they are executed first and last."""
        first: dict[tuple[int, ...], Line] = {}
        last: dict[tuple[int, ...], Line] = {}
        for line, chain in zip(self.executed, self.chains, strict=True):
            first.setdefault(chain, line)
            last[chain] = line
        return sorted({*first.values(), *last.values()})

    def _to(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A call: pass over all but the one that has the line."""
        if frame.f_code.co_filename.startswith(_PACKAGE):
            self.calls += 1
            if isinstance(self.at, Line) and self.calls == self.at.call:
                self.calls -= 1
                return self._trace(frame, event, arg)
        return None


def _chain(frame: FrameType | None) -> tuple[int, ...]:
    """What tells a line of hookstats, with the lines that called it, from all others."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            found += [id(frame.f_code), frame.f_lineno]
        frame = frame.f_back
    return tuple(found)


class FullMemory(TorchDispatchMode):
    """Context: raises MemoryError when hookstats' Python calls torch or NumPy for the `at`-th time.

    `at` = 0 raises nothing. `calls` counts, `where` says which call failed.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.calls = 0
        self.where = ""
        self.reached = False
        self._patches = ExitStack()

    def __enter__(self) -> FullMemory:
        for name in ("zeros", "empty", "array", "concatenate", "ones", "full"):
            patch = mock.patch.object(np, name, partial(self._numpy, getattr(np, name)))
            self._patches.enter_context(patch)
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> bool:
        super().__exit__(exc_type, exc, traceback)
        self._patches.close()
        self.reached = exc_type is MemoryError and str(exc) == "injected"
        return self.reached

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._count()
        return func(*args, **(kwargs or {}))

    def _numpy(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._count()
        return function(*args, **kwargs)

    def _count(self) -> None:
        caller: FrameType | None = sys._getframe(2)
        while caller is not None and caller.f_code.co_filename.startswith(_LIBRARIES):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename.startswith(_PACKAGE):
            self.calls += 1
            if self.calls == self.at:
                self.where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                raise MemoryError("injected")


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
