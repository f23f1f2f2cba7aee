"""What integrations share: where a run goes, what trainers log of it, when a watch is closed."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

from hookstats.records.alike import did_you_mean
from hookstats.records.norms import GRADIENT_NORM, has_parts
from hookstats.records.speeds import COST
from hookstats.watching.handle import Watch
from hookstats.watching.out import first_free
from hookstats.watching.watch import watch

_NAME = "hookstats"


def run_directory(parent: str, *, resumed: bool) -> Path:
    """Where the run of a trainer goes: "hookstats" in `parent`, or as `free_name` says."""
    return free_name(Path(parent, _NAME), resumed=resumed)


def free_name(path: Path, *, resumed: bool = False) -> Path:
    """A name for a run that is free: `path`, or with "-1", "-2", ... at its end.

    See `first_free`.

    resumed: whether a training run goes on: then the last name that is taken, if any is.
    """

    def name(number: int) -> Path:
        return path.with_name(f"{path.name}-{number}") if number else path

    return first_free(str(path), name, resumed=resumed)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a ValueError unless these are arguments of `watch` that a callback does not set.

    So a wrong one is found when the callback is made, not when the training begins.
    """
    given = ("model", "optimizer", "out", "append")
    names = [name for name in signature(watch).parameters if name not in given]
    for name, value in options.items():
        if name not in names:
            raise ValueError(
                f"{name} = {value!r}{did_you_mean(name, names)}: expected arguments of watch, "
                f"{', '.join(names)}"
            )


def of_run(options: Mapping[str, Any], *, resumed: bool) -> dict[str, Any]:
    """The options of a training run: one that is resumed continues its run, and overwrites none."""
    overwrite = bool(options.get("overwrite", False)) and not resumed
    return {**options, "append": resumed, "overwrite": overwrite}


def headline(watched: Watch) -> dict[str, float]:
    """What a trainer's log has of a watch: the number of alerts, and of the last recorded step the
    norm of the gradients and what watching cost. Waits until that step is recorded.

    The norm is left out where this rank knows parts of the gradients alone: under FSDP and tensor
    parallelism, unless the watch reduces records.
    """
    found = {f"{_NAME}/alerts": float(len(watched.alerts))}
    with suppress(RuntimeError):  # no step is recorded yet
        latest = watched.latest
        names = (COST,) if has_parts(latest.sites) else (GRADIENT_NORM, COST)
        scalars = latest.scalars
        found.update({f"{_NAME}/{name}": scalars[name] for name in names if name in scalars})
    return found


class Numbering:
    """Gives the steps of a watch the trainer's numbers, each when it is begun."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._begun: int | None = None

    def begin(self, step: int) -> None:
        """Number the open step, unless it is an open one that was numbered before."""
        if self._watch.open_step != self._begun:
            self._watch.set_step(step)
            self._begun = step


def close_at_exit(watch: Watch) -> None:
    """Have `watch` closed when the interpreter ends, if it is still open, and there, then."""
    atexit.register(_close, weakref.ref(watch))


def _close(watch: weakref.ref[Watch]) -> None:
    found = watch()
    if found is not None:
        found.close()
