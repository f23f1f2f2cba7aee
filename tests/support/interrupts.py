"""Raises an error at one chosen line of hookstats' Python, as Ctrl-C would, at one chosen
allocation, as a full memory would, or by a real signal, after a time."""

from __future__ import annotations

import dis
import signal
import sys
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hookstats

_PACKAGE = str(Path(hookstats.__file__).parent)
_LIBRARIES = (torch.__path__[0], np.__path__[0])


class Interrupt:
    """Context: raises `error` when hookstats begins the `at`-th line that this thread executes.

    `at` = 0 raises nothing. `lines` counts, `where` says what was interrupted.
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
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line" and not _leaves_with(frame.f_code, frame.f_lasti):
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise self.error("injected")
        return self._trace


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


@cache
def _leaves_with(code: CodeType, offset: int) -> bool:
    """Whether the instruction begins the call of __exit__ at the regular end of a with block.

    A line event comes there, at which an error would keep a lock for ever. A signal does not:
    CPython handles signals after calls, and that of __exit__ is the next one.
    """
    following = [i for i in dis.get_instructions(code) if i.offset >= offset][:3]
    return len(following) == 3 and all(
        i.opname == "LOAD_CONST" and i.argval is None for i in following
    )
