"""Children: the processes that a script starts, so that what these train can be watched, too.

A process of multiprocessing, as torch.multiprocessing.spawn starts, gets another target. A process
that runs the script itself again, as Lightning starts one for each further device, gets another
command. All others are left alone: workers that load data or that are in a pool train nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from hookstats._torch import COMPILERS

Target = Callable[..., Any]
_WORKERS = ("multiprocessing.", "torch.utils.data.", "concurrent.futures.", COMPILERS)


class Children:
    """As a context: changes how the processes begin that are started while it is entered."""

    def __init__(
        self, script: Sequence[str], target: Callable[[Target], Target], command: Sequence[str]
    ) -> None:
        """script: what python is given to run the script, such as ["-m", "package.train"].

        target: what a process is to run instead of its own target; it must be picklable.
        command: what stands before the script and its arguments in a command to watch it.
        """
        self._script = [sys.executable, *script]
        self._target = target
        self._command = [sys.executable, *command]
        self._start: Any = BaseProcess.start
        self._popen: Any = subprocess.Popen.__init__
        self.started = False
        """Whether there was one."""

    def __enter__(self) -> Children:
        start_before, popen_before = self._start, self._popen

        def start(process: Any) -> None:
            target = getattr(process, "_target", None)
            if target is not None and _may_train(target):
                process._target = self._target(target)
                self.started = True
            start_before(process)

        def __init__(popen: Any, args: Any, *more: Any, **options: Any) -> None:
            popen_before(popen, self._watched(args), *more, **options)

        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        subprocess.Popen.__init__ = __init__  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        BaseProcess.start = self._start  # type: ignore[method-assign]
        subprocess.Popen.__init__ = self._popen  # type: ignore[method-assign]

    def _watched(self, args: Any) -> Any:
        """A command that runs the script again, with hookstats; other commands as they are."""
        if not isinstance(args, (list, tuple)) or list(args[: len(self._script)]) != self._script:
            return args
        self.started = True
        return [*self._command, *args[1:]]


def _may_train(target: Target) -> bool:
    module = getattr(target, "__module__", None) or type(target).__module__
    return not f"{module}.".startswith(_WORKERS)
