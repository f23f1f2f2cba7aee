"""What integrations share: where a run goes, what trainers log of it, its steps' numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

from hookstats.records.keys import did_you_mean
from hookstats.records.norms import COST, GRADIENT_NORM, has_parts
from hookstats.rules import as_rules
from hookstats.runs.remote import is_url
from hookstats.watching.handle import Watch
from hookstats.watching.out import agreed, is_taken
from hookstats.watching.settings import (
    KINDS_BY_DEFAULT,
    Settings,
    as_optimizers,
    check_others,
)
from hookstats.watching.watch import watch

_NAME = "hookstats"


def run_directory(parent: str, *, resumed: bool) -> str:
    """Where the run of a trainer goes: "hookstats" in `parent`, or as `free_name` says."""
    path = f"{parent.rstrip('/')}/{_NAME}" if is_url(parent) else str(Path(parent, _NAME))
    return free_name(path, resumed=resumed)


def free_name(path: str, *, resumed: bool = False) -> str:
    """A name for a run that is free: `path`, or with "-1", "-2", ... at its end; may be a URL.

    resumed: whether a training run goes on: then the last name that is taken, if any is.

    Raises:
        ValueError: several ranks cannot agree; see `out.agreed`.
    """
    return agreed(path, lambda: _free_name(path, resumed=resumed))


def _free_name(path: str, *, resumed: bool) -> str:
    last, name = None, path
    for number in count(1):
        if not is_taken(name):
            break
        last, name = name, f"{path}-{number}"
    return last if resumed and last is not None else name


def check_options(
    options: Mapping[str, Any], given: Collection[str] = ("model", "optimizer", "out", "append")
) -> None:
    """Raise a ValueError unless these are arguments of `watch` that an integration does not set.

    So a wrong one is found when a callback is made, not when the training begins.

    given: the arguments that the integration has from elsewhere.
    """
    names = [name for name in signature(watch).parameters if name not in given]
    for name, value in options.items():
        if name not in names:
            raise ValueError(
                f"{name} = {value!r}{did_you_mean(name, names)}: expected arguments of watch, "
                f"{', '.join(names)}"
            )
    check_values(options)


def check_values(options: Mapping[str, Any]) -> None:
    """Raise a ValueError for arguments of `watch` that it would refuse, whatever the model."""
    defaults = {name: known.default for name, known in signature(watch).parameters.items()}
    given = {**defaults, **options}
    if given["kinds"] is None:
        given["kinds"] = KINDS_BY_DEFAULT
    Settings(**{name: given[name] for name in Settings._fields}).checked()
    check_others(**{name: given[name] for name in signature(check_others).parameters})
    as_rules(given["rules"])


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
    """Gives the steps of a watch the trainer's numbers, each when it is begun.

    Trainers count a step of which the loss scaler of fp16 skips the optimizers: where none of them
    stepped, the step is closed when the next one begins, so that the two do not merge.
    """

    def __init__(self, watch: Watch, optimizers: object) -> None:
        """optimizers: those of the watch, as `watch` takes them."""
        self._watch = watch
        self._begun: int | None = None
        self._stepped = False
        self._handles = [
            optimizer.register_step_pre_hook(self._note) for optimizer in as_optimizers(optimizers)
        ]

    def begin(self, step: int) -> None:
        """Number the open step, unless it was numbered before, or the user closed the watch."""
        if self._watch.closed:
            return
        if self._watch.open_step == self._begun and step != self._begun and not self._stepped:
            self._watch.step()
        if self._watch.open_step != self._begun:
            self._watch.set_step(step)
            self._begun = step
            self._stepped = False

    def end(self, step: int | None) -> None:
        """Let go of the optimizers.

        step: the number that the next step would have, so that a last step that was skipped is
            closed; None where training broke off.
        """
        if step is not None:
            self.begin(step)
        while self._handles:
            self._handles.pop().remove()

    def _note(self, *_: object) -> None:
        self._stepped = True


class Recording:
    """The watch of a trainer's callback, from the beginning of a training run to its end."""

    def __init__(self, out: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> None:
        check_options(options)
        self._out = out
        self._options = options
        self.watch: Watch | None = None
        """The watch while training goes on; None before and after."""
        self._numbering: Numbering | None = None

    @property
    def open_watch(self) -> Watch | None:
        """The watch, unless the user closed it."""
        return None if self.watch is None or self.watch.closed else self.watch

    def _begin(
        self, model: Any, optimizers: Any, out: str | os.PathLike[str], *, resumed: bool
    ) -> None:
        """Watch from now on; a training run that is resumed continues the run directory."""
        options = of_run(self._options, resumed=resumed)
        self.watch = watch(model, optimizers, out=out, **options)
        self._numbering = Numbering(self.watch, optimizers)

    def _close(self, step: int | None = None) -> None:
        """Close the watch; `step`: as `Numbering.end` takes it."""
        if self._numbering is not None:
            self._numbering.end(step)
        if self.watch is not None:
            self.watch.close()
        self.watch = self._numbering = None
