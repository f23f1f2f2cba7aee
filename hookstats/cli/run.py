"""Runs a training script with the models that it trains watched."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hookstats.cli.output import count, describe
from hookstats.cli.usage.run import DIRECTORY
from hookstats.integrations.automatic import Automatic
from hookstats.integrations.children import Children, Target
from hookstats.integrations.shared import check_values, free_name
from hookstats.stats.printable import printable
from hookstats.watching.config import load_config
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

_OPTIONS = ("out", "every", "include", "kinds")


def run(options: argparse.Namespace) -> int:
    """Run the script; its exceptions, exit codes and warnings are its own."""
    try:
        recorder = _recorder(options)
    except (ImportError, KeyError, OSError, ValueError) as error:
        _say(f"error: {describe(error)}")
        return 2
    with recorder.watching():
        _run(options.script, options.arguments, module=options.module)
    return 0


class _Recorder:
    """Watches what a process trains. It is sent to the processes that the process starts."""

    def __init__(self, options: argparse.Namespace, settings: dict[str, Any]) -> None:
        """settings: the arguments of `watch`, "out" included if it is given."""
        self._place = Path.cwd()  # the script may go elsewhere
        path = os.path.normpath(self._place / options.script)
        self._script = ["-m", options.script] if options.module else [path]
        self._command = _command(options)
        self._settings = settings
        name = options.script.rpartition(".")[2] if options.module else Path(options.script).stem
        out = settings.pop("out", None)
        self._out = None if out is None else self._place / out
        self._default = self._place / DIRECTORY / name
        self._begun = False

    @contextmanager
    def watching(self, *, is_child: bool = False) -> Iterator[None]:
        """In this context, what is trained is watched; at its end, it is said what was."""
        automatic = Automatic(self._begin)

        def leave() -> None:
            automatic.close()
            self._tell(automatic, children, is_child or children.started)

        children = Children(self._script, partial(_Child, self), self._command, leave)
        try:
            with children, automatic:
                yield
        finally:
            self._tell(automatic, children, is_child or children.started)

    def _tell(self, automatic: Automatic, children: Children, others_may_train: bool) -> None:
        """Say what was watched."""
        for each in automatic.watches:
            path = printable(self._shown(each.path))
            steps = count(each.coverage().steps, "step")
            _say(f"{steps} in {path}: hookstats show {path}")
        if not (automatic.watches or others_may_train):
            _say("no training was watched")
        if children.others:
            _say(f"not followed: {printable(', '.join(children.others))}")

    def _begin(self, models: dict[str, nn.Module], optimizers: list[Optimizer]) -> Watch:
        """Begin to watch. By now the ranks have a process group, and so one directory for all."""
        model: Any = models[""] if list(models) == [""] else models
        settings = self._settings
        if self._begun:  # a further training of the script has a run of its own
            out, settings = free_name(self._out or self._default), {**settings, "append": False}
        else:
            out = self._out or free_name(self._default)
        self._begun = True
        return watch(model, optimizers, out=out, **settings)

    def _shown(self, path: Path | None) -> str:
        """A run as it is called where the command was given."""
        if path is not None and path.is_relative_to(self._place):
            path = path.relative_to(self._place)
        return str(path)


class _Child:
    """What a process runs instead of its target: the target, watched."""

    def __init__(self, recorder: _Recorder, target: Target) -> None:
        self._recorder = recorder
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.watching(is_child=True):
            return self._target(*args, **kwargs)


def _say(what: str) -> None:
    print(f"hookstats run: {what}", file=sys.stderr)


def _recorder(options: argparse.Namespace) -> _Recorder:
    """What the options say.

    Raises:
        ImportError, KeyError, OSError, ValueError: as `load_config`; there is no such script;
            `watch` would refuse an option.
    """
    if not options.module and not Path(options.script).is_file():
        raise FileNotFoundError(f"SCRIPT {options.script}: no such file")
    settings = load_config(options.config) if options.config else {}
    given = {name: getattr(options, name) for name in _OPTIONS}
    settings |= {name: value for name, value in given.items() if value is not None}
    check_values(settings)
    return _Recorder(options, settings)


def _command(options: argparse.Namespace) -> list[str]:
    """The words after "python" that watch with these options, up to the script; anywhere."""
    words = ["-m", "hookstats", "run"]
    for name in ("out", "every", "config"):
        value = getattr(options, name)
        value = Path.cwd() / value if isinstance(value, Path) else value
        words += [] if value is None else [f"--{name}", str(value)]
    for pattern in options.include or ():
        words += ["--include", pattern]
    return words if options.kinds is None else [*words, "--kinds", ",".join(options.kinds)]


def _run(script: str, arguments: list[str], *, module: bool) -> None:
    """Run a script or a module as python does, up to its end or a SystemExit."""
    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(script).resolve().parent))
        # As python's, its __file__ holds wherever the script goes.
        runpy.run_path(str(Path(script).absolute()), run_name="__main__")
