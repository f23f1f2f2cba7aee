"""watch(): records a training run of torchtitan's Trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torchtitan.trainer import Trainer

from hookstats._torch import without_compiled_calls
from hookstats.integrations.shared import (
    Numbering,
    check_options,
    headline,
    of_run,
    run_directory,
)
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch as watch_model


def watch(trainer: Trainer, *, out: str | os.PathLike[str] | None = None, **options: Any) -> Watch:
    """Record a Trainer: ``w = watch(trainer)``, between ``config.build()`` and ``trainer.train()``.

    The Trainer compiles the blocks of its model when they are called first: so hooks that are set
    before are in the compiled code. Steps have the Trainer's numbers, also after it loaded a
    checkpoint, and a run in the directory is then continued. At the Trainer's logging interval the
    scalars get its "loss", "max_loss" and "grad_norm_before_clipping", and its log gets
    "hookstats/alerts", "hookstats/grad_norm" and "hookstats/watch_seconds". `Trainer.close` closes
    the watch.

    Args:
        trainer: a Trainer that has not trained yet.
        out: the run directory; by default "hookstats" in the Trainer's `dump_folder`.
        **options: every other argument of `hookstats.watch`. Of a pipeline, the rank's stages have
            the names "0", "1", ...

    Raises:
        ValueError: as `hookstats.watch`; an option is no argument of it.
    """
    check_options(options, ("model", "optimizer", "out"))
    parts = trainer.model_parts
    folder = trainer.config.dump_folder
    if out is None:
        out = run_directory(folder, resumed=_resumes(trainer))
    resumed = options.pop("append", Path(out).exists() and _resumes(trainer))
    with without_compiled_calls(parts):
        watched = watch_model(
            parts[0] if len(parts) == 1 else list(parts),
            list(trainer.optimizers.optimizers),
            out=out,
            **of_run(options, resumed=resumed),
        )
    _join_logs(trainer, watched)
    _close_with(trainer, watched, _number(trainer, watched))
    return watched


def _resumes(trainer: Trainer) -> bool:
    """Whether the Trainer will load one of its checkpoints."""
    config = trainer.config.checkpoint
    folder = Path(trainer.config.dump_folder, getattr(config, "folder", "checkpoint"))
    enabled = getattr(config, "enable", False)
    return bool(enabled) and folder.is_dir() and any(folder.glob("step-*"))


def _number(trainer: Trainer, watched: Watch) -> Numbering:
    """Give each step the Trainer's number when it begins.

    Nothing is observed before: where the Trainer loads a checkpoint, one of its functions steps
    the optimizers without gradients.
    """
    numbering = Numbering(watched, list(trainer.optimizers.optimizers))
    step = trainer.train_step
    watched.pause()
    begun = False

    @wraps(step)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        if not begun:
            begun = True
            if not watched.closed:
                watched.resume()
        numbering.begin(trainer.step)
        return step(*args, **kwargs)

    trainer.train_step = train_step
    return numbering


def _join_logs(trainer: Trainer, watched: Watch) -> None:
    """Keep what the Trainer logs, and add to that."""
    processor = trainer.metrics_processor
    log: Callable[..., Any] = processor.log

    @wraps(log)
    def joined(
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: Mapping[str, Any] | None = None,
    ) -> Any:
        if watched.closed:
            return log(
                step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=extra_metrics
            )
        watched.log(
            loss=global_avg_loss, max_loss=global_max_loss, grad_norm_before_clipping=grad_norm
        )
        ours = {**(extra_metrics or {}), **headline(watched)}
        return log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=ours)

    processor.log = joined


def _close_with(trainer: Trainer, watched: Watch, numbering: Numbering) -> None:
    close = trainer.close

    @wraps(close)
    def closes() -> None:
        numbering.end(None)
        watched.close()
        close()

    trainer.close = closes
