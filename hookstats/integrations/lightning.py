"""WatchCallback: records a training run of Lightning's Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from hookstats.integrations.shared import Recording, headline, run_directory


class WatchCallback(Recording, Callback):
    """Records every step of a Trainer: ``Trainer(..., callbacks=[WatchCallback()])``.

    Steps have the number that ``trainer.global_step`` has when they begin, as in its loggers. With
    manual optimization and several optimizers, a step ends when all of them have stepped, and
    numbers go up by as many. The loss and what the module logs are in the scalars; what validation
    and the end of an epoch log, in those of the step before. At the Trainer's logging interval, its
    loggers get "hookstats/alerts" and "hookstats/grad_norm". Validation is left out. Checkpoints
    have the place of the run, which a resumed training run continues.

    Args:
        out: the run directory; by default "hookstats" in the Trainer's `log_dir`, or else its
            `default_root_dir`; "hookstats-1", ... where another training run left one.
        **options: every other argument of `watch` but `optimizer` and `append`.

    Raises:
        ValueError: an option is none of these.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(out, options)
        self._resumed: str | None = None  # the run that a checkpoint names
        self._path: str | None = None
        self._logged = 0  # the step when the loggers last got something
        self._kept: dict[str, Tensor] = {}  # what the module had logged when it was last asked

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the module from now on."""
        self._close()
        resumed = trainer.global_step > 0
        out = self._out
        if out is None and resumed and self._resumed is not None:
            out = self._resumed
        elif out is None:
            parent = trainer.log_dir or trainer.default_root_dir
            out = run_directory(parent, resumed=resumed)
        self._path = str(Path(out).resolve())
        self._begin(pl_module, trainer.optimizers, out, resumed=resumed)
        self._logged = trainer.global_step
        self._kept = dict(trainer.callback_metrics)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Number the step that begins."""
        if self._numbering is not None:
            self._numbering.begin(trainer.global_step)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Have a rule look at the graph of the loss."""
        if watched := self.open_watch:
            watched.look_at_loss(loss)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the loss and what the module logged; give the loggers what there is."""
        watched = self.open_watch
        if watched is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        values = self._news(trainer)
        if loss is not None:  # for accumulation, the Trainer has divided it
            automatic = pl_module.automatic_optimization
            values["loss"] = loss * (trainer.accumulate_grad_batches if automatic else 1)
        watched.log(values)
        steps = trainer.global_step
        if steps != self._logged and steps % trainer.log_every_n_steps == 0:
            self._logged = steps  # several batches may make a step
            found = headline(watched)
            for logger in trainer.loggers:
                logger.log_metrics(found, step=steps - 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what validation logged."""
        if watched := self.open_watch:
            watched.log(self._news(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what is logged of the whole epoch."""
        if watched := self.open_watch:
            news = self._news(trainer)
            # What is logged of steps and epochs has its own name for the epoch, and one for both.
            watched.log({n: x for n, x in news.items() if f"{n}_epoch" not in news})

    def _news(self, trainer: Trainer) -> dict[str, Tensor]:
        """What the module has logged since this was last asked: the Trainer keeps all it ever got,
        each number as the tensor that it was."""
        found = {name: x for name, x in trainer.callback_metrics.items() if x.numel() == 1}
        known, self._kept = self._kept, found
        return {
            name: x
            for name, x in found.items()
            if name not in known or known[name].data_ptr() != x.data_ptr()
        }

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the recording."""
        self._close(trainer.global_step)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the recording."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """For the Trainer's checkpoints: where the run is."""
        return {"run": self._path}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run that a checkpoint names, if training is resumed."""
        self._resumed = state_dict.get("run")
