"""Recorder: watches what a script trains, in its process and in those of multiprocessing.

A process that the script starts by multiprocessing, as torch.multiprocessing.spawn does, gets
another target, or another `run` where its class overrides `run`. Workers of a DataLoader or of a
pool train nothing: they are left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hookstats._torch import COMPILERS
from hookstats.integrations.automatic import Automatic
from hookstats.integrations.shared import free_name
from hookstats.runs.headers import headed_ranks
from hookstats.runs.remote import is_url
from hookstats.runs.world import current_rank, world_size
from hookstats.stats.messages import RUN, say
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

Target = Callable[..., Any]
_WORKERS = ("multiprocessing.", "torch.utils.data.", "concurrent.futures.", COMPILERS)
"""The modules whose functions no process trains with."""


class Recorder:
    """Watches what a process trains. It is sent to the processes that the process starts."""

    def __init__(self, settings: dict[str, Any], out: str | Path | None, default: Path) -> None:
        """settings: the arguments of `watch`, but for `out`.

        out: the run directory, or its URL; if None, `default` with a number where it is taken.
        """
        self._settings = settings
        here = Path.cwd()  # the script may go elsewhere
        self._out = out if out is None or is_url(out) else str(here / out)
        self._default = str(here / default)
        self._begun = False
        self._ranks = 1
        self._has_children = False
        self._may_meet_others = False  # which write to the same run

    @contextmanager
    def watching(self, *, is_child: bool = False) -> Iterator[None]:
        """In this context, training is watched; at its end, a line on stderr says what was not."""
        self._may_meet_others = is_child
        automatic = Automatic(self._begin)
        try:
            with self._watched_processes(), automatic:
                yield
        finally:
            self._tell(automatic, is_child or self._has_children)

    def _tell(self, automatic: Automatic, others_may_train: bool) -> None:
        """Say what was not watched."""
        for each in automatic.watches:
            recorded = 0 if each.path is None else len(headed_ranks(each.path))
            if current_rank() == 0 and recorded < self._ranks:
                say(
                    f"{recorded} of {self._ranks} ranks recorded: to record all, start with "
                    f"`torchrun --nproc-per-node {self._ranks} -m hookstats run`",
                    RUN,
                )
        if not (automatic.watches or others_may_train):
            say("no training was watched", RUN)

    def _begin(
        self, models: dict[str, nn.Module], optimizers: list[Optimizer], tries: int = 10
    ) -> Watch:
        """Begin to watch. By now the ranks have a process group, and so one directory for all."""
        model: Any = models[""] if list(models) == [""] else models
        settings = self._settings
        if self._begun:  # a further training of the script has its own run
            out, settings = free_name(self._out or self._default), {**settings, "append": False}
        else:
            out = self._out or free_name(self._default)
        self._begun = True
        self._ranks = world_size()
        try:
            return watch(model, optimizers, out=out, **settings)
        except FileExistsError:
            if self._ranks > 1 or not tries or not (self._out is None or self._may_meet_others):
                raise
        # Another process of the script, without a process group, took the name meanwhile.
        time.sleep(0.1)
        return self._begin(models, optimizers, tries - 1)

    @contextmanager
    def _watched_processes(self) -> Iterator[None]:
        """In this context, processes that multiprocessing starts watch what they train."""
        start: Any = BaseProcess.start

        def start_watched(process: Any) -> None:
            own, target = process.run, getattr(process, "_target", None)
            replaced = vars(process).get("run")  # where the process itself has one, not its class
            if _may_train(own):  # not that of multiprocessing, which calls the target
                process.run = _Child(self, own)
                self._has_children = True
            elif target is not None and _may_train(target):
                process._target = _Child(self, target)
                self._has_children = True
            try:
                start(process)
            finally:
                vars(process).pop("run", None)
                if replaced is not None:
                    process.run = replaced

        BaseProcess.start = start_watched  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            BaseProcess.start = start  # type: ignore[method-assign]


class _Child:
    """What a process runs instead of its target: the target, watched."""

    def __init__(self, recorder: Recorder, target: Target) -> None:
        self._recorder = recorder
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._recorder.watching(is_child=True):
            return self._target(*args, **kwargs)


def _may_train(target: Target) -> bool:
    module = getattr(target, "__module__", None) or type(target).__module__
    return not f"{module}.".startswith(_WORKERS)
