"""The inputs of subcommands: a run, one of its steps, some of its sites."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.runs import selections
from hookstats.runs.run import Run, open_run


def open_path(path: Path | str, strict: bool = False, rank: int | None = None) -> Run:
    """The run at a path or URL, or what one rank recorded of it; a damaged part is left out with a
    warning, or an error if `strict`.

    Raises:
        ValueError: the run has no such rank; the message names the ranks that it has.
    """
    run = open_run(path, skip_damaged=not strict)
    if rank is None:
        return run
    if rank not in run.ranks:
        known = ", ".join(map(str, run.ranks)) or "none yet"
        raise ValueError(f"--rank {rank}: {run.path} has the ranks {known}")
    return run.of_rank(rank)


def read_step(run: Run, step: int | None) -> StepRecord:
    """The record of a step, by default the last; negative steps count from the end."""
    if step is None or step < 0:
        steps, back = run.steps, step or -1
        if not steps:
            step = 0  # any step: the error of the run says which steps there are
        elif len(steps) < -back:
            raise ValueError(f"--step {step}: {run.path} has {len(steps)} steps")
        else:
            step = steps[back]
    return run[step]


def choose(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> list[Key]:
    """The keys that match any of the layers' globs and any of the kinds, in their order."""
    if not layers and not kinds:
        return list(keys)
    chosen: set[Key] = set()
    for layer in layers or ["*"]:
        for kind in kinds or ["*"]:
            with suppress(KeyError):  # no key has both
                chosen.update(selections.choose(keys, layer, kind))
    return [key for key in keys if key in chosen]


def check_chosen(keys: Collection[Key], layers: list[str] | None, kinds: list[str] | None) -> None:
    """Refuse a choice that matches nothing.

    Raises:
        KeyError: no key has one of the layers or kinds; the message names similar ones.
    """
    for layer in layers or ():
        selections.choose(keys, layer)
    for kind in kinds or ():
        selections.choose(keys, kinds=kind)
    if keys and not choose(keys, layers, kinds):
        raise KeyError(f"no site has both a layer of {layers} and a kind of {kinds}")
