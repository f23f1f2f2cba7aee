"""What subcommands read: a run, one of its ranks and steps, some of its sites."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.runs import series
from hookstats.runs.format import RUN_JSON
from hookstats.runs.run import Run, open_run


def add_run(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """The positional argument for a run directory."""
    parser.add_argument(
        name, metavar=name.upper(), type=Path, help="run directory, as `watch(..., out=...)` made"
    )


def natural(text: str) -> int:
    """An argument's type: an integer, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer, 0 or more")
    return int(text)


def add_rank(parser: argparse.ArgumentParser) -> None:
    """The option for the rank whose records are meant."""
    parser.add_argument(
        "--rank", type=natural, default=0, metavar="N", help="which process of several (default: 0)"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The options that choose sites."""
    parser.add_argument(
        "--layer",
        action="append",
        metavar="GLOB",
        help="only layers of this name, such as 'encoder.*'; may be given several times",
    )
    parser.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="only this kind, such as output, grad_output, param_grad, or a glob; may be given "
        "several times",
    )


def open_path(path: Path, strict: bool = False) -> Run:
    """The run at a path; where there is none the error names runs that are spelled alike.

    Damaged parts are warned of and left out; if `strict`, they are errors.
    """
    if path.exists():
        return open_run(path, skip_damaged=not strict)
    hint = ""
    if path.parent.is_dir():
        runs = [other.name for other in path.parent.iterdir() if (other / RUN_JSON).is_file()]
        close = difflib.get_close_matches(path.name, runs, n=3)
        if close:
            hint = f"; did you mean {' or '.join(str(path.parent / name) for name in close)}?"
    raise FileNotFoundError(f"{path}: no such run{hint}")


def read_step(run: Run, step: int | None, rank: int) -> StepRecord:
    """What `rank` recorded in a step; by default its last, counted from the end where negative."""
    if step is None or step < 0:
        steps, back = run.steps_of(rank), step or -1
        if not steps:
            step = 0  # neither there: the run says what it has
        elif len(steps) < -back:
            raise ValueError(f"--step {step}: {run.path} has {len(steps)} steps")
        else:
            step = steps[back]
    return run.record(step, rank)


def choose(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> list[Key]:
    """The keys that any of the layers' globs and any of the kinds match, in their order."""
    if not layers and not kinds:
        return list(keys)
    chosen: set[Key] = set()
    for layer in layers or ["*"]:
        for kind in kinds or ["*"]:
            with suppress(KeyError):  # nothing is both
                chosen.update(series.choose(keys, layer, kind))
    return [key for key in keys if key in chosen]


def check_chosen(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> None:
    """Refuse what `choose` finds nothing for.

    Raises:
        KeyError: a layer or a kind that none of the keys has; it names what is spelled alike.
    """
    for layer in layers or ():
        series.choose(keys, layer)
    for kind in kinds or ():
        series.choose(keys, kinds=kind)
    if keys and not choose(keys, layers, kinds):
        raise KeyError(f"no site is of a layer {layers} and of a kind {kinds}")
