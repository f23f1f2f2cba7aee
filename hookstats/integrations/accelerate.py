"""watch(): records a training run that uses Accelerate."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from hookstats.integrations.shared import check_options, run_directory
from hookstats.records.norms import GRADIENT_NORM, has_parts
from hookstats.records.record import StepRecord
from hookstats.stats.arguments import check_integer
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch as watch_model


def watch(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    out: str | os.PathLike[str] | None = None,
    log_every: int | None = None,
    **options: Any,
) -> Watch:
    """Record what `accelerator.prepare` returned: ``w = watch(accelerator, model, optimizer)``.

    Steps are those of the optimizer, so that micro-batches that accumulate are merged. Checkpoints
    of the accelerator (`save_state`, `load_state`) have the number of the step, and a run in `out`
    is continued from there. The watch is closed when the interpreter ends, if not before.

    Args:
        accelerator: the accelerator that prepared the model and the optimizer.
        model, optimizer: prepared or not; compiled models and wrappers are unwrapped.
        out: the run directory; by default "hookstats" in the accelerator's `project_dir`, if it has
            one, or "hookstats-1", ... where another training run left one.
        log_every: at every how many steps the accelerator's trackers get "hookstats/grad_norm",
            unless this rank knows parts of the gradients alone, and the other numbers of the step;
            None for never.
        **options: every other argument of `hookstats.watch`.

    Raises:
        ValueError: as `hookstats.watch`; an option is no argument of it; log_every is no integer
            of 1 or more.
    """
    check_options(options, ("model", "optimizer", "out"))
    sinks = list(options.pop("sinks", ()))
    if log_every is not None:
        sinks.append(_Trackers(accelerator, check_integer("log_every", log_every, 1)))
    if out is None and accelerator.project_dir is not None:
        resumed = bool(options.get("append", False))
        out = run_directory(accelerator.project_dir, resumed=resumed)
    plain = accelerator.unwrap_model(model, keep_torch_compile=False)
    watched = watch_model(plain, optimizer, out=out, sinks=sinks, **options)
    accelerator.register_for_checkpointing(_Place(watched))
    return watched


class _Place:
    """The step of a watch in an accelerator's checkpoints."""

    def __init__(self, watched: Watch) -> None:
        self._watch = watched

    def state_dict(self) -> dict[str, Any]:
        """See `Watch.state_dict`."""
        return self._watch.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there, unless the watch was closed: the best weights are often loaded then."""
        if not self._watch.closed:
            self._watch.load_state_dict(state_dict)


class _Trackers:
    """A sink that gives the numbers of steps to an accelerator's trackers."""

    def __init__(self, accelerator: Accelerator, every: int) -> None:
        self._accelerator = accelerator
        self._every = every
        self._whole = set[int]()  # steps of which the norm is that of all gradients

    def __call__(self, record: StepRecord) -> None:
        """Statistics are in the run."""
        if not has_parts(record.sites):
            self._whole.add(record.step)

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step, if it is due."""
        is_whole = step in self._whole
        self._whole.discard(step)
        if step % self._every == 0:
            names = [name for name in values if is_whole or name != GRADIENT_NORM]
            found = {f"hookstats/{name}": values[name] for name in names}
            self._accelerator.log(found, step=step)
