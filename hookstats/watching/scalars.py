"""ScalarLog: the numbers that training logs, kept by step until the recorder takes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from hookstats._torch import is_dtensor, is_freed, is_plain, local_shard
from hookstats.buffers.staging import event
from hookstats.hooks.readable import own_dispatch
from hookstats.kernels.ops import ignore_captures
from hookstats.records.norms import RATE
from hookstats.stats.messages import error_text, warn
from hookstats.stats.printable import shown

_POLL_SECONDS = 2e-4
_BATCH_SECONDS = 0.25
"""How long steps wait here to be handed on together: each time wakes the recorder."""


class StepScalars(NamedTuple):
    """The scalars of one step."""

    step: int
    time: float
    """When it was closed, in seconds since 1970, UTC."""
    values: dict[str, float | OnDevice]
    is_open: bool = False
    """Whether they are those of an iteration after which the step is still open, as where a loss
    scaler skips the optimizer's step."""
    samples: Sequence[int | str] = ()
    """The ids of the step's samples."""

    def resolved(self) -> dict[str, float]:
        """The values as numbers; waits for the devices."""
        return {
            name: value.wait() if isinstance(value, OnDevice) else value
            for name, value in self.values.items()
        }


class OnDevice:
    """A number that a device has still to compute. Making one waits for nothing."""

    __slots__ = ("_event", "_finish", "_value")

    def __init__(self, tensor: Tensor, finish: Callable[[Tensor], float] = float) -> None:
        """tensor: has one element, unless `finish` makes one of it; it may change afterwards."""
        self._value = tensor.detach().to("cpu", non_blocking=True)
        self._event = event(tensor.device)
        self._finish = finish

    def wait(self) -> float:
        """The number, once the device is done."""
        ignore_captures()
        while not self._event.query():
            time.sleep(_POLL_SECONDS)
        return self._finish(self._value)


def as_scalar(name: str, value: Any) -> float | OnDevice:
    """A logged value as a number, or as one to come.

    Raises:
        ValueError: it is neither a real number nor a tensor of one element.
    """
    if isinstance(value, Tensor):
        found = value
        if type(value) is not Tensor and is_dtensor(value) and _is_replica(value):
            found = local_shard(value)
        is_one = is_plain(found) and found.numel() == 1
        if is_one and not (found.is_complex() or is_freed(found)):
            return float(found.detach()) if found.is_cpu else OnDevice(found)
    else:
        try:
            return float(value)
        except (OverflowError, TypeError, ValueError):
            pass
    what = (
        f"{type(value).__name__} of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else repr(value)
    )
    raise ValueError(f"{name} = {what}: expected a number, or a tensor of one element")


def as_scalars(values: Mapping[Any, Any]) -> dict[str, float | OnDevice]:
    """Logged values by name, as `as_scalar` gives them.

    One that a device has, and for which there is no memory on the host, is left out, with a
    RuntimeWarning: training goes on.
    """
    found: dict[str, float | OnDevice] = {}
    for key, value in values.items():
        name = str(key)
        try:
            found[name] = as_scalar(name, value)
        except (MemoryError, RuntimeError) as error:
            warn(f"hookstats: {name} is not logged: {error_text(error)}")
    return found


def as_samples(ids: object) -> list[int | str]:
    """The ids of samples as a list.

    Raises:
        ValueError: it is no integer, text or path, and no sequence or tensor on the host of these.
    """
    if isinstance(ids, (str, os.PathLike)):
        return [os.fspath(ids)]
    found = ids
    if isinstance(ids, (Tensor, np.ndarray)) and getattr(ids, "is_cpu", True):
        found = ids.reshape(-1).tolist()
    if isinstance(found, int):
        found = [found]
    if isinstance(found, Iterable) and not isinstance(found, Tensor):
        made = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in found]
        made = [int(one) if isinstance(one, (np.integer, Tensor)) else one for one in made]
        if all(isinstance(one, (int, str)) for one in made):
            return made
    raise ValueError(
        f"ids = {shown(ids)}: expected integers or texts, or a tensor of integers on the host"
    )


def _is_replica(tensor: Any) -> bool:
    return all(placement.is_replicate() for placement in tensor.placements)


def learning_rates(optimizers: Iterable[Optimizer]) -> dict[str, float | OnDevice]:
    """The learning rate of each parameter group, as "lr/0", "lr/1", ..., over all optimizers."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    found: dict[str, float | OnDevice] = {}
    for i, group in enumerate(groups):
        if type(group.get("lr")) is float:  # the usual case
            found[f"lr/{i}"] = group["lr"]
            continue
        # An optimizer without rates, or with one per element.
        with suppress(KeyError, ValueError), own_dispatch():
            found |= as_scalars({f"lr/{i}": group["lr"]})
    return found


class ScalarLog:
    """The scalars of the open step, and of the step closed last, which may still get some.

    What is logged after a step was closed and before the next forward is of the closed step: so
    `log` may stand after `optimizer.step()`.
    """

    def __init__(
        self, has_begun: Callable[[], bool], submit: Callable[[Sequence[StepScalars]], object]
    ) -> None:
        """has_begun: whether the model was called in the open step.

        submit: takes the scalars of complete steps, in order.
        """
        self._has_begun = has_begun
        self._submit = submit
        self._open: dict[str, float | OnDevice] = {}
        self._samples: list[int | str] = []  # of the open step
        self._has_samples = False  # whether any step has
        self.closed: StepScalars | None = None
        """Those of the step closed last, until the next step begins."""
        self._complete: list[StepScalars] = []
        self._is_shown = False  # the record of the step closed last
        self._is_unseen = False  # a complete one: its scalars come before the next record
        self._handed_on = self._stepped = time.monotonic()
        self._first = True
        self.over = 0
        """How many iterations, each of as many micro-batches as any closed step had, are over in
        the open step."""
        self.has_loss = False
        """Whether a number was logged whose name has "loss" in it."""
        self.next = 0
        """The step after the one that was closed last."""
        # How often a name came again in the open step, since an optimizer closed one, and at most
        # between two such closes.
        self._again = self._since = self._usual = 0

    def log(self, values: Mapping[str, float | OnDevice]) -> None:
        """Keep values; a name that the step has already gets the new value."""
        self.has_loss = self.has_loss or any("loss" in name.lower() for name in values)
        self._seal_if_begun()
        if self.closed is None and not self._open.keys().isdisjoint(values):
            self._again += 1
            self.over, left = divmod(self._again, self._usual + 1)
            if not left:
                self._submit([StepScalars(self.next, time.time(), dict(self._open), is_open=True)])
        (self._open if self.closed is None else self.closed.values).update(values)

    def add(self, values: Mapping[str, float | OnDevice]) -> None:
        """Keep values of the step that an optimizer just did, which come by themselves."""
        self._seal_if_begun()
        (self._open if self.closed is None else self.closed.values).update(values)

    def log_samples(self, samples: Sequence[int | str]) -> None:
        """Keep the ids of more samples of the open step."""
        if self.closed is not None and not self._has_samples and not self._has_begun():
            warn(
                f"hookstats: log_batch: step {self.closed.step} was closed without samples; "
                "expected a call before optimizer.step(), as these are of the next step"
            )
        self._has_samples = True
        self._samples += samples

    def close(
        self,
        step: int,
        values: Mapping[str, float | OnDevice],
        *,
        is_shown: bool,
        is_stuck: bool = False,
    ) -> StepScalars:
        """Close the open step, and return what it has, to which more may be added; `values` are
        the ones recorded without `log`.

        is_shown: whether sinks and rules get its record, with these. is_stuck: whether the step is
        closed because the optimizer does not step, so that it shows nothing of what is usual.
        """
        self.seal()
        now = time.monotonic()
        timed = {} if self._first else {RATE: 1 / max(now - self._stepped, 1e-9)}
        self._stepped, self._first = now, False
        given = {**values, **timed, **self._open}
        closed = StepScalars(step, time.time(), given, samples=self._samples)
        self._open, self._samples, self.closed, self.next = {}, [], closed, step + 1
        self._since += self._again + is_stuck
        if not is_stuck:
            self._usual, self._since = max(self._usual, self._since), 0
        self._again = self.over = 0
        if now >= self._handed_on + _BATCH_SECONDS or (is_shown and self._is_unseen):
            self.hand_on()
        self._is_shown = is_shown
        return closed

    def seal(self) -> None:
        """End the step that was closed last: what is logged from now on is of the open step."""
        if self.closed is not None:
            self._complete.append(self.closed)
            self.closed = None
            self._is_unseen |= not self._is_shown

    def _seal_if_begun(self) -> None:
        if self.closed is not None and self._has_begun():
            self.seal()

    def hand_on(self) -> None:
        """Submit the steps that are complete."""
        complete, self._complete = self._complete, []
        self._handed_on, self._is_unseen = time.monotonic(), False
        if complete:
            self._submit(complete)

    def end(self) -> None:
        """Submit all closed steps."""
        self.seal()
        self.hand_on()
