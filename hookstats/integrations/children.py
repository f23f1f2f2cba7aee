"""Children: the processes that a script starts, so that what these train can be watched, too.

A process of multiprocessing, as torch.multiprocessing.spawn starts, gets another target, or another
`run` where its class has one of its own. A process that runs the script itself again, as Lightning
starts one for each further device, gets another command; so does a script that becomes itself anew,
by os.exec. Workers that load data or that are in a pool train nothing: they are left alone. So are
all others; of those that may train it is noted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hookstats._torch import COMPILERS

Target = Callable[..., Any]
_WORKERS = ("multiprocessing.", "torch.utils.data.", "concurrent.futures.", COMPILERS)
_TRAINERS = ("python", "torchrun", "accelerate", "deepspeed")
"""Commands that may train begin with one of these."""
_STARTERS = ("env", "nohup", "nice", "time", "exec", "sudo", "srun", "mpirun", "mpiexec")
"""Commands that start the one after them."""
_SHELLS = ("sh", "bash", "zsh", "dash")
_BETWEEN = re.compile(r"&&|\|\||[;|&\n]")
"""Between the commands of a shell."""
_WORDS = 4
"""So many words of a command are noted."""


class Children:
    """As a context: changes how the processes begin that are started while it is entered."""

    def __init__(
        self,
        script: Sequence[str],
        target: Callable[[Target], Target],
        command: Sequence[str],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """script: what python is given to run the script, such as ["-m", "package.train"].

        target: what a process is to run instead of its own target or `run`; it must be picklable.
        command: what stands before the script and its arguments in a command to watch it.
        leave: is called before this process becomes another program, by os.exec.
        """
        self._script = [sys.executable, *script]
        self._target = target
        self._command = [sys.executable, *command]
        self._start: Any = BaseProcess.start
        self._popen: Any = subprocess.Popen.__init__
        self._fork: Any = getattr(os, "fork", None)
        self._system: Any = os.system
        self._execs: Any = os.execv, os.execve  # which all others call
        self._leave = leave
        self._process = os.getpid()
        self._starting = 0  # processes of multiprocessing, which may fork
        self.started = False
        """Whether there was one."""
        self.others: list[str] = []
        """What was left alone and may train, each once: commands, and "os.fork"."""

    def __enter__(self) -> Children:
        popen_before, fork_before, system_before = self._popen, self._fork, self._system

        def start(process: Any) -> None:
            self._begin(process)

        def __init__(popen: Any, args: Any, *more: Any, **options: Any) -> None:
            popen_before(popen, self._watched(args), *more, **options)

        def system(command: Any) -> int:
            self._note_commands(os.fsdecode(command))
            return int(system_before(command))

        def execv(path: Any, args: Any) -> None:
            self._execs[0](path, self._becoming(path, args))

        def execve(path: Any, args: Any, env: Any) -> None:
            self._execs[1](path, self._becoming(path, args), env)

        def fork() -> int:
            child: int = fork_before()
            if child and not self._starting:
                self._note("os.fork")
            return child

        BaseProcess.start = start  # type: ignore[method-assign, assignment]
        subprocess.Popen.__init__ = __init__  # type: ignore[method-assign, assignment]
        os.system = system
        os.execv, os.execve = execv, execve  # type: ignore[assignment]
        if fork_before is not None:
            os.fork = fork
        return self

    def __exit__(self, *exc: object) -> None:
        BaseProcess.start = self._start  # type: ignore[method-assign]
        subprocess.Popen.__init__ = self._popen  # type: ignore[method-assign]
        os.system = self._system
        os.execv, os.execve = self._execs
        if self._fork is not None:
            os.fork = self._fork

    def _begin(self, process: Any) -> None:
        """Start a process of multiprocessing, with another `run` or target if it may train."""
        own, target = process.run, getattr(process, "_target", None)
        given = vars(process).get("run")  # the process' own, as of no class
        if _may_train(own):  # not that of multiprocessing, which calls the target
            process.run = self._target(own)
            self.started = True
        elif target is not None and _may_train(target):
            process._target = self._target(target)
            self.started = True
        self._starting += 1
        try:
            self._start(process)
        finally:
            self._starting -= 1
            vars(process).pop("run", None)
            if given is not None:
                process.run = given

    def _watched(self, args: Any) -> Any:
        """A command that runs the script again, with hookstats; other commands as they are."""
        if isinstance(args, str):
            self._note_commands(args)
        elif isinstance(args, (list, tuple)):
            if list(args[: len(self._script)]) == self._script:
                self.started = True
                return [*self._command, *args[1:]]
            self._note_command([str(word) for word in args])
        return args

    def _becoming(self, path: Any, args: Any) -> Any:
        """The words of the program that this process becomes; a process that was forked does not
        know what is watched."""
        if os.getpid() != self._process or not (isinstance(path, int) or os.access(path, os.X_OK)):
            return args
        args = self._watched(list(args))
        self._leave()
        return args

    def _note_commands(self, text: str) -> None:
        """Note what may train of what a shell is told."""
        for command in _BETWEEN.split(text):
            self._note_command(command.split())

    def _note_command(self, words: Sequence[str]) -> None:
        """Note a command if it may train: "python -c" and compilers do not."""
        words = _started(words)
        if words and Path(words[0]).name in _SHELLS:
            options = [word[:1] == "-" and word.endswith("c") for word in words]
            if any(options):
                self._note_commands(" ".join(words[options.index(True) + 1 :]))
            elif any(word[:1] != "-" for word in words[1:]):  # a script, which may start training
                self._note(" ".join(words[:_WORDS]))
            return
        trains = bool(words) and Path(words[0]).name.startswith(_TRAINERS)
        compiles = any(COMPILERS.replace(".", os.sep) in word for word in words)
        if trains and not compiles and "-c" not in words[1:2]:
            self._note(" ".join(words[:_WORDS]))

    def _note(self, other: str) -> None:
        if other not in self.others:
            self.others.append(other)


def _started(words: Sequence[str]) -> Sequence[str]:
    """The command that a command starts: of "env A=1 nice -n 5 python a.py", "python a.py"."""
    left, starts = list(words), False
    while left:
        name = Path(left[0]).name
        starts |= name in _STARTERS
        argument = starts and (name.startswith("-") or name.isdigit())
        if not (name in _STARTERS or "=" in name or argument):
            break
        left.pop(0)
    return left


def _may_train(target: Target) -> bool:
    module = getattr(target, "__module__", None) or type(target).__module__
    return not f"{module}.".startswith(_WORKERS)
