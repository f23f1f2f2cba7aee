"""Runs a training script with the models that it trains watched."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hookstats.cli.output import describe
from hookstats.cli.usage.run import DIRECTORY
from hookstats.integrations.automatic import Automatic
from hookstats.integrations.shared import free_name
from hookstats.stats.printable import printable
from hookstats.watching.config import load_config
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

_OPTIONS = ("every", "include", "kinds")


def run(options: argparse.Namespace) -> int:
    """Run the script; its exceptions, exit codes and warnings are its own."""
    try:
        settings, out = _settings(options)
    except (ImportError, KeyError, OSError, ValueError) as error:
        print(f"hookstats run: error: {describe(error)}", file=sys.stderr)
        return 2

    def begin(models: dict[str, nn.Module], optimizers: list[Optimizer]) -> Watch:
        model: Any = models[""] if list(models) == [""] else models
        return watch(model, optimizers, out=out, **settings)

    automatic = Automatic(begin)
    try:
        with automatic:
            _run(options.script, options.arguments, module=options.module)
    finally:
        _report(automatic.watch, out)
    return 0


def _settings(options: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """The arguments of `watch`, and the run directory.

    Raises:
        ImportError, KeyError, OSError, ValueError: as `load_config`; there is no such script.
    """
    if not options.module and not Path(options.script).is_file():
        raise FileNotFoundError(f"SCRIPT {options.script}: no such file")
    settings = load_config(options.config) if options.config else {}
    given = {name: getattr(options, name) for name in _OPTIONS}
    settings |= {name: value for name, value in given.items() if value is not None}
    in_file = settings.pop("out", None)
    name = options.script.rpartition(".")[2] if options.module else Path(options.script).stem
    return settings, Path(options.out or in_file or free_name(DIRECTORY / name))


def _run(script: str, arguments: list[str], *, module: bool) -> None:
    """Run a script or a module as python does, up to its end or a SystemExit."""
    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")


def _report(watched: Watch | None, out: Path) -> None:
    if watched is None:
        print("hookstats run: no training was watched", file=sys.stderr)
    else:
        path = printable(str(out))
        steps = watched.coverage().steps
        print(f"hookstats run: {steps} steps in {path}: hookstats show {path}", file=sys.stderr)
