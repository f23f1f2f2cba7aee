"""ls: list the runs in a directory or at a URL: their steps, last losses and incidents.

Directories inside are searched, too. The loss is the last value of "loss", or of another number
with "loss" in its name, of the training rather than of an evaluation. The newest runs come last.

examples:
  hookstats ls                      lists the runs below this directory
  hookstats ls runs --sort loss
  hookstats ls s3://bucket/runs     downloads what is new of each run
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hookstats.cli.arguments import add_rank

if TYPE_CHECKING:
    from hookstats.runs.run import Run
    from hookstats.show.grid import Cell

SORTS = ("started", "name", "steps", "loss", "incidents")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        default="",
        help="where to look for runs (default: this directory)",
    )
    parser.add_argument(
        "--sort", choices=SORTS, default=SORTS[0], help=f"sort by this (default: {SORTS[0]})"
    )
    add_rank(parser)


class Listed(NamedTuple):
    """What a line says of a run."""

    name: str
    started: str
    """When the run was begun, or last continued: ISO 8601, UTC; "" where that is unknown."""
    steps: int
    """How many steps were recorded."""
    last: int | None
    """The last of them."""
    loss: float | None
    """None where no loss was logged."""
    severities: tuple[str, ...]
    """Of each incident."""
    closed: bool


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.output import stdout
    from hookstats.runs.remote import is_url, runs_at
    from hookstats.show.grid import print_grid
    from hookstats.show.progress import track

    place: str = options.directory
    directory = place if is_url(place) else Path(place)
    if isinstance(directory, Path) and not directory.is_dir():
        raise FileNotFoundError(errno.ENOENT, "expected a directory with runs", str(directory))
    paths: list[Path | str]
    paths = [*runs_below(directory)] if isinstance(directory, Path) else [*runs_at(directory)]
    found = [_described(path, directory, options.rank) for path in track(paths, "reading runs")]
    listed = [one for one in found if one is not None]
    code = 2 if len(listed) < len(found) else 0
    console = stdout()
    if not listed:
        console.print(f"no runs below {directory}", soft_wrap=True)
        return code
    listed.sort(key=lambda one: _order(one, options.sort))
    columns = ("run", "started (UTC)", "steps", "last\nstep", "loss", "incidents", "state")
    print_grid(console, columns, [_cells(one) for one in listed], text=2, elided=1)
    return code


def _described(path: Path | str, directory: Path | str, rank: int | None) -> Listed | None:
    """What there is to say of a run; None, with a line on stderr, where the run cannot be read: one
    broken run hides no others."""
    from hookstats.cli.inputs import open_path
    from hookstats.cli.output import describe

    try:
        return describe_run(open_path(path, rank=rank), directory)
    except (OSError, ValueError) as error:
        print(f"hookstats ls: error: {describe(error)}", file=sys.stderr)
        return None


def runs_below(directory: Path) -> Iterator[Path]:
    """The run directories in `directory`, at any depth, itself included; none inside another."""
    from hookstats.runs.format import RUN_JSON

    for path, inside, files in os.walk(directory):
        if RUN_JSON in files:
            inside.clear()
            yield Path(path)
        else:
            inside[:] = sorted(name for name in inside if not name.startswith("."))


def describe_run(run: Run, directory: Path | str) -> Listed:
    """What there is to say of a run.

    Raises:
        OSError, ValueError: its files cannot be read.
    """
    steps = run.steps
    place = run.url or str(run.path)
    name = place.removeprefix(str(directory)).strip("/") or place
    return Listed(
        name,
        run.created or "",
        len(steps),
        steps[-1] if steps else None,
        last_loss(run),
        tuple(incident.severity for incident in run.incidents),
        run.closed is not None,
    )


def last_loss(run: Run) -> float | None:
    """The loss that was logged last, that of the training before others; None without any."""
    from hookstats.rules.history import is_loss

    names = sorted(
        (name for name in run.scalars if "loss" in name.lower()),
        key=lambda name: (name != "loss", not is_loss(name)),
    )
    if not names:
        return None
    values = run.scalars[names[0]].values
    return float(values[-1]) if len(values) else None


def _order(one: Listed, by: str) -> tuple[object, str]:
    keys = {
        "started": one.started,
        "name": "",
        "steps": one.steps,
        "loss": _goodness(one.loss),
        "incidents": len(one.severities),
    }
    return keys[by], one.name


def _goodness(loss: float | None) -> tuple[int, float]:
    """Sorts the least loss first, non-finite losses after others, and none last."""
    if loss is None:
        return 2, 0.0
    return (0, loss) if math.isfinite(loss) else (1, 0.0)


def _style(loss: float | None) -> str:
    from hookstats.cli.alerts import STYLES

    return "" if loss is None or math.isfinite(loss) else STYLES["error"]


def _cells(one: Listed) -> list[Cell]:
    from hookstats.cli.alerts import STYLES
    from hookstats.show.terminal import format_number

    worst = next((severity for severity in STYLES if severity in one.severities), "")
    return [
        (one.name, ""),
        (one.started[:16].replace("T", " "), ""),
        (str(one.steps), ""),
        ("-" if one.last is None else str(one.last), ""),
        ("-" if one.loss is None else format_number(one.loss), _style(one.loss)),
        (_said(one.severities, worst), STYLES.get(worst, "")),
        ("closed" if one.closed else "open", ""),
    ]


def _said(severities: tuple[str, ...], worst: str) -> str:
    """How many incidents, and how many of the worst kind: "3 (1 error)"."""
    from hookstats.show.grid import count

    if not severities:
        return "0"
    return f"{len(severities)} ({count(severities.count(worst), worst)})"
