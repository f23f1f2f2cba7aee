"""A rule about the loss that training logs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hookstats.records.alerts import SCALAR, Alert, Severity
from hookstats.records.norms import GRADIENT_NORM
from hookstats.rules.history import SCALARS, History
from hookstats.rules.rule import ScalarRule, at_least
from hookstats.stats.arguments import check_integer

_Values = np.ndarray[tuple[int], np.dtype[np.float64]]

_LOSS = re.compile(r"loss(?:[/_ -](?:step|train|training|total|batch|mean|avg))?\Z")
_WHOLE = re.compile(r"(?:(?:train|training|total)[/_ .-])*(?:total)?loss(?:[/_ -]\w+)?")
_ELSEWHERE = {"val", "valid", "validation", "eval", "evaluation", "dev", "test"}
_WINDOW = 12
_MOST = SCALARS - 1  # values of a loss: when there are more, nobody knows how many
_ONE_SIDED = 1.645  # of a normal distribution, 5 % lie above


@dataclass(frozen=True, kw_only=True)
class Loss(ScalarRule):
    """A logged loss is NaN, leaps, climbs or does not fall.

    Losses are scalars whose name ends in "loss", or in "loss" and "step", "train" or "total", as
    "train_loss_step", but those of an evaluation, as "val/loss". Of several, those of parts or of
    players, as "g_loss", may climb and stay. NaN and infinity are an error. A leap is a loss above
    the median of the last 16 by `deviations` times the usual change from step to step (1.4826 times
    the median of its magnitude: Hampel, 1974), and by `leap` of that median. A loss climbs if the
    median of 5 is `climb` times all of the first 3. It does not fall if after `steps` steps the
    last 12 are no lower than the first 12, by Welch's t-test at `t` (1947), or if these do not fall
    among themselves (by the t of their slope, -1.5) and are, to `chance` of it, the logarithm of
    the last output's channels, as of a guess; while the learning rate does not grow, and, within a
    tenth of such a guess, not before there were `samples` samples per class to learn from. A
    plateau that training is about to leave looks the same, but for its gradients, which grow
    exponentially (Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks", 2014): while their norm is greater in the last 12 of 30 steps than in
    the first 12 by 5 % or more, and at the level of 5 %, the rule waits, and looks again 12 and 24
    steps later. `steps` is 24 to 63. The alert's value is the loss.
    """

    name: ClassVar[str] = "loss"
    advice: ClassVar[str] = "look at labels, data and learning rate at this step"

    deviations: float = 6.0
    leap: float = 0.3
    climb: float = 1.4
    steps: int = 30
    t: float = 0.75
    chance: float = 0.01
    samples: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "deviations", "leap", "climb", "t", "chance", "samples")
        check_integer("steps", self.steps, 24, _MOST)

    def looks_at(self, name: str) -> bool:
        return is_loss(name)

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        for name, value in values.items():
            if not is_loss(name):
                continue
            past = history.scalars[name]
            found = self._leap(value, past)
            if found is None and (_is_whole(name) or sum(map(is_loss, history.scalars)) == 1):
                found = self._course(past, history)
            if found is not None:
                says, severity = found
                yield self.about((name, SCALAR), step, None, says, value, severity=severity)

    def _leap(self, value: float, past: Sequence[float]) -> tuple[str, Severity] | None:
        if not math.isfinite(value):
            return f"is {value}", "error"
        before = np.array([x for x in past[-17:-1] if math.isfinite(x)])
        if len(before) >= 8:
            usual = float(np.median(before))
            change = 1.4826 * float(np.median(np.abs(np.diff(before))))
            if value - usual > max(self.deviations * change, self.leap * abs(usual)):
                return (
                    f"leaps to {value:.4g}: its median over the steps before is {usual:.4g}",
                    "warning",
                )
        return None

    def _course(self, past: Sequence[float], history: History) -> tuple[str, Severity] | None:
        if 10 <= len(past) < 64:
            last, first = float(np.median(past[-5:])), max(past[:3])
            if first > 0 and last > self.climb * first:
                return f"climbs: it is {last:.4g} after {first:.4g} at the start", "warning"
        looks = range(self.steps, min(self.steps + 2 * _WINDOW, _MOST) + 1, _WINDOW)
        if len(past) not in looks:
            return None
        norms = history.scalars.get(GRADIENT_NORM, [])
        known = len(norms) == len(past)
        for steps in looks:
            found = self._flat(np.array(past[:steps]), history)
            waits = known and _grows(np.array(norms[:steps]))
            if steps == len(past):
                return None if waits else found
            if found is None or not waits:  # the rule has said what it had to say
                return None
        return None

    def _flat(self, past: _Values, history: History) -> tuple[str, Severity] | None:
        first, last = past[:_WINDOW], past[-_WINDOW:]
        fell, error = first.mean() - last.mean(), _error(first, last)
        rates = [rate for name, rate in history.scalars.items() if name.startswith("lr/")]
        if any(rate[-1] > rate[len(rate) // 2] for rate in rates):
            return None
        chance = math.log(history.classes) if history.classes and history.classes > 1 else 0.0
        enough = history.samples * len(past) >= self.samples * (history.classes or 0)
        if not enough and abs(last.mean() - chance) <= 0.1 * chance:
            return None
        # Below the loss of a guess, by however little, something was learned.
        if 0.999 * chance <= last.mean() <= (1 + self.chance) * chance and not _falls(last):
            says = f"is still {last.mean():.4g}, that of a guess among {history.classes} classes"
            return says, "warning"
        if math.isfinite(fell) and fell <= max(self.t * error, 0.004 * abs(first.mean())):
            says = f"does not fall: it is {last.mean():.4g} after {first.mean():.4g} at the start"
            return says, "warning"
        return None


def is_loss(name: str) -> bool:
    """Whether a scalar of this name is a loss of the training."""
    lower = name.lower()
    return bool(_LOSS.search(lower)) and _ELSEWHERE.isdisjoint(re.split(r"[/_ .-]", lower))


def _is_whole(name: str) -> bool:
    """Whether a loss is no part of another, nor that of one player of several."""
    return bool(_WHOLE.fullmatch(name.lower()))


def _error(first: _Values, last: _Values) -> float:
    """The standard error of the difference of two means, by Welch."""
    return math.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last))


def _grows(norms: _Values) -> bool:
    """Whether the last of 30 norms of gradients are greater than the first, beyond chance."""
    recent = norms[-30:]
    if not ((recent > 0) & np.isfinite(recent)).all():
        return False
    logs: _Values = np.log(recent)
    first, last = logs[:_WINDOW], logs[-_WINDOW:]
    return bool(last.mean() - first.mean() > max(_ONE_SIDED * _error(first, last), 0.05))


def _falls(values: _Values) -> bool:
    """Whether the slope of a line through the values is below 0 by 1.5 times its standard error."""
    away = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float((away * values).sum() / np.square(away).sum())
    rest = values - values.mean() - slope * away
    error = math.sqrt(np.square(rest).sum() / (len(values) - 2) / np.square(away).sum())
    return slope < -1.5 * error
