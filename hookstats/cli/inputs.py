"""The inputs of subcommands: a run, one of its steps, some of its sites."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.runs import series
from hookstats.runs.run import Run, open_run


def open_path(path: Path, strict: bool = False) -> Run:
    """The run at a path; a damaged part is left out with a warning, or an error if `strict`."""
    return open_run(path, skip_damaged=not strict)


def read_step(run: Run, step: int | None, rank: int) -> StepRecord:
    """The record of `rank` in a step, by default the last; negative steps count from the end."""
    if step is None or step < 0:
        steps, back = run.steps_of(rank), step or -1
        if not steps:
            step = 0  # any step: the error of the run says which steps there are
        elif len(steps) < -back:
            raise ValueError(f"--step {step}: {run.path} has {len(steps)} steps")
        else:
            step = steps[back]
    return run.record(step, rank)


def choose(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> list[Key]:
    """The keys that match any of the layers' globs and any of the kinds, in their order."""
    if not layers and not kinds:
        return list(keys)
    chosen: set[Key] = set()
    for layer in layers or ["*"]:
        for kind in kinds or ["*"]:
            with suppress(KeyError):  # no key has both
                chosen.update(series.choose(keys, layer, kind))
    return [key for key in keys if key in chosen]


def check_chosen(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> None:
    """Refuse a choice that matches nothing.

    Raises:
        KeyError: no key has one of the layers or kinds; the message names similar ones.
    """
    for layer in layers or ():
        series.choose(keys, layer)
    for kind in kinds or ():
        series.choose(keys, kinds=kind)
    if keys and not choose(keys, layers, kinds):
        raise KeyError(f"no site has both a layer of {layers} and a kind of {kinds}")
