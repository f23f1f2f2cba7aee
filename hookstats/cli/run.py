"""run: run a training script, unchanged, with every model that it trains watched.

SCRIPT and its arguments are what python would get; -m MODULE runs a module. The modules whose
parameters an optimizer has are watched from the first training step on: plain loops, compiled
models, several models, Transformers, Lightning, DDP and FSDP2. Processes that the script starts by
multiprocessing, such as torch.multiprocessing.spawn, are watched as well. To start ranks in another
way, use torchrun or accelerate, as below. If something cannot be watched, a line on stderr says so,
and the script goes on.

examples:
  hookstats run train.py --epochs 3
  hookstats run -o runs/a --every 10 --include 'encoder.*' train.py
  hookstats run --config watch.toml -m package.train --lr 0.1
  torchrun --nproc-per-node 2 -m hookstats run train.py
  accelerate launch -m hookstats run train.py
"""

from __future__ import annotations

import argparse
import builtins
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hookstats.cli.arguments import add_script, location, natural

if TYPE_CHECKING:
    from hookstats.integrations.script import Recorder

_OPTIONS = ("out", "every", "include", "kinds")
"""The options that are arguments of `watch`."""
DIRECTORY = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--out",
        type=location,
        metavar="DIR",
        help=f"run directory to write, or its URL (default: {DIRECTORY}/ and the name of the "
        "script, with a number where that is taken)",
    )
    parser.add_argument(
        "--every",
        type=natural,
        metavar="N",
        help="record every Nth step (default: as many as 3 %% of the training's time allows)",
    )
    parser.add_argument(
        "--include",
        action="append",
        metavar="GLOB",
        help="only layers and parameters with this name; may be repeated",
    )
    parser.add_argument(
        "--kinds",
        type=lambda text: tuple(text.split(",")),
        metavar="KIND,...",
        help="what to record (default: output,grad_output,param_grad and the model's input)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with arguments of `watch`; options of the command line override it",
    )
    add_script(parser)


def run(options: argparse.Namespace) -> int:
    """Run the script; its exceptions, exit codes and warnings are its own."""
    from hookstats.cli.output import describe
    from hookstats.stats.messages import RUN, say

    try:
        recorder = _recorder(options)
    except (ImportError, KeyError, OSError, ValueError) as error:
        say(f"error: {describe(error)}", RUN)
        return 2
    sys.excepthook = partial(_show_error, sys.excepthook)
    with recorder.watching():
        run_script(options.script, options.arguments, module=options.module)
    return 0


def _show_error(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, trace: Any
) -> None:
    """Show an error that ended the script as python does, without what called the script."""
    frames = trace
    while frames is not None and frames.tb_frame.f_code is not run_script.__code__:
        frames = frames.tb_next
    if frames is not None:
        trace = frames.tb_next
        while trace is not None and trace.tb_frame.f_globals.get("__name__") == "runpy":
            trace = trace.tb_next
    show(kind, error.with_traceback(trace), trace)


def _recorder(options: argparse.Namespace) -> Recorder:
    from hookstats.integrations.script import Recorder
    from hookstats.integrations.shared import check_values
    from hookstats.watching.config import load_config

    if not options.module and not Path(options.script).is_file():
        raise FileNotFoundError(f"SCRIPT {options.script}: no such file")
    settings: dict[str, Any] = load_config(options.config) if options.config else {}
    given = {name: getattr(options, name) for name in _OPTIONS}
    settings |= {name: value for name, value in given.items() if value is not None}
    check_values(settings)
    name = options.script.rpartition(".")[2] if options.module else Path(options.script).stem
    return Recorder(settings, settings.pop("out", None), DIRECTORY / name)


def run_script(script: str, arguments: list[str], *, module: bool) -> None:
    """Run a script or a module as python does, up to its end or a SystemExit."""
    import runpy

    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str(Path(script).resolve().parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    # As python's, its __file__ holds wherever the script goes; runpy would set sys.argv[0], too.
    main.__file__ = str(Path(script).absolute())
    vars(main)["__builtins__"] = builtins
    code = compile(Path(script).read_bytes(), main.__file__, "exec", dont_inherit=True)
    exec(code, vars(main))
