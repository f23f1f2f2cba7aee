"""WatchCallback: records a training run of Transformers' Trainer, or of one derived from it."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hookstats.integrations.shared import Recording, headline, run_directory

_OTHER = {"grad_norm": "grad_norm_before_clipping"}
"""Names of the Trainer that mean something else here."""


class WatchCallback(Recording, TrainerCallback):
    """Records every step of a Trainer: ``Trainer(..., callbacks=[WatchCallback()])``.

    Steps have the Trainer's numbers: step n is the one after which ``state.global_step`` is n, as
    in its logs. What the Trainer logs, such as "loss" and "eval_loss", is in the scalars; its
    "grad_norm", which is that before clipping, is "grad_norm_before_clipping" there. At its logging
    interval, "hookstats/alerts" and "hookstats/grad_norm" join what it logs: in
    ``state.log_history`` and for callbacks that come after this one. Evaluation is left out. A
    training run that is resumed continues the run directory.

    Args:
        out: the run directory; by default "hookstats" in the Trainer's `output_dir`, or
            "hookstats-1", "hookstats-2", ... where another training run left one.
        **options: every other argument of `watch` but `optimizer` and `append`.

    Raises:
        ValueError: an option is none of these.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(out, options)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the model from now on."""
        self._close()  # of a training run that an exception ended: the Trainer tells nobody
        resumed = state.global_step > 0
        directory = args.output_dir or "."
        out = run_directory(directory, resumed=resumed) if self._out is None else self._out
        self._begin(kwargs["model"], kwargs["optimizer"], out, resumed=resumed)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Number the step that begins."""
        if self._numbering is not None:
            self._numbering.begin(state.global_step + 1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep what the Trainer logs, and add to that."""
        watched = self.open_watch
        if watched is None or logs is None:
            return
        numbers = {name: x for name, x in logs.items() if isinstance(x, (int, float))}
        watched.log({_OTHER.get(name, name): x for name, x in numbers.items()})
        ours = headline(watched)
        logs.update(ours)
        if state.log_history:
            state.log_history[-1].update(ours)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the recording."""
        self._close(state.global_step + 1)
