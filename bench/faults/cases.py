"""Runs a case of the corpus: a training run with or without its fault, watched as people do it."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from bench.faults.fault import Fault
from bench.faults.models import BASES, Training
from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.rules import Alert, Incident
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

STEPS = 44
"""Faults in the middle come at step 32."""
_ENDLESS = 1 << 30


class Outcome(NamedTuple):
    """What a run recorded, and what the rules said of it."""

    incidents: tuple[Incident, ...]
    alerts: tuple[Alert, ...]
    losses: list[float]
    sizes: list[dict[Key, float]]
    """The rms of each tensor, step by step; infinite where a tensor had non-finite values."""
    failures: dict[str, str]


def run_case(
    base: str,
    fault: Fault | None,
    seed: int,
    steps: int = STEPS,
    out: Path | None = None,
    every: int | Literal["auto"] = 1,
) -> Outcome:
    """Train, with the fault if there is one; with the default rules and nothing else."""
    training = BASES[base].begin(seed)
    sizes: list[dict[Key, float]] = []

    def measure(record: StepRecord) -> None:
        whole = record.whole
        rms = np.where((whole.nan + whole.posinf + whole.neginf) > 0, math.inf, whole.rms)
        sizes.append(dict(zip(record, rms.tolist(), strict=True)))

    if fault is not None and fault.start is not None and fault.step == 0:
        fault.start(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch(
            training.model,
            training.optimizer,
            every=every,
            out=out,
            sinks=[measure],
            rules="default",
        ) as w:
            slow = 0 if fault is None else fault.slow
            losses = [_step(training, fault, w, step) for step in range(steps + slow)]
    return Outcome(w.incidents, w.alerts, losses, sizes, dict(w.coverage().failures))


def _step(t: Training, fault: Fault | None, w: Watch, step: int) -> float:
    """One step of a training run; its loss."""
    x, y = t.batch(step)
    if fault is not None:
        if fault.start is not None and step == fault.step > 0:
            fault.start(t)
        if fault.batch is not None and fault.step <= step <= (
            _ENDLESS if fault.last is None else fault.last
        ):
            x, y = fault.batch(t, x, y)
    t.optimizer.zero_grad()
    with torch.autocast("cpu", t.autocast) if t.autocast else nullcontext():
        loss = t.loss(t.model, x, y)
    w.log(loss=loss)
    if t.scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        t.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        t.scaler.unscale_(t.optimizer)
    if t.clip is not None:
        torch.nn.utils.clip_grad_norm_(t.model.parameters(), t.clip)
    if t.scaler is None:
        t.optimizer.step()
    else:
        t.scaler.step(t.optimizer)
        t.scaler.update()
    if t.scheduler is not None:
        t.scheduler.step()
    return float(loss)


def differs(fault: Fault, faulty: Outcome, healthy: Outcome) -> bool:
    """Whether the fault changes what is recorded, beside its twin of the same seed without it.

    From its first step on, in some step a tensor has another size by a factor of 1.5 or more, or
    one of the two runs has a tensor that the other one has not, or the losses differ by 5 %.
    """
    both = min(len(faulty.losses), len(healthy.losses))
    for step in range(fault.step, min(len(faulty.sizes), both)):
        ours, theirs = faulty.sizes[step], healthy.sizes[step] if step < len(healthy.sizes) else {}
        if ours.keys() != theirs.keys():
            return True
        a, b = (np.array(list(each.values())) for each in (ours, theirs))
        with np.errstate(all="ignore"):
            if (np.abs(np.log(a / b)) > math.log(1.5)).any() or (
                np.isfinite(a) != np.isfinite(b)
            ).any():
                return True
    for a_loss, b_loss in zip(faulty.losses, healthy.losses, strict=False):
        if not abs(a_loss - b_loss) <= 0.05 * abs(b_loss):
            return True
    return False
