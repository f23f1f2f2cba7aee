"""A rule about the loss that training logs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median
from typing import ClassVar, NamedTuple

import numpy as np

from hookstats.records.alerts import SCALAR, Alert, Severity
from hookstats.records.norms import GRADIENT_NORM
from hookstats.rules.evidence import evidence
from hookstats.rules.history import SCALARS, History, is_loss
from hookstats.rules.rule import Rule, at_least
from hookstats.stats.arguments import check_integer

_Values = np.ndarray[tuple[int], np.dtype[np.float64]]

_WHOLE = re.compile(r"(?:(?:train|training|total)[/_ .-])*(?:total)?loss(?:[/_ -]\w+)?")
_DISCRIMINATOR = "d|disc|discriminator|critic"
_GENERATOR = "g|gen|generator"
_NEAR = 16  # values, of which a median is taken


class _Found(NamedTuple):
    """What is to be said of a loss."""

    says: str
    severity: Severity
    advice: str = ""
    lasted: int = 0
    """For how many steps before this one it has been so."""


@dataclass(frozen=True, kw_only=True)
class Loss(Rule):
    """A logged loss is NaN, leaps, climbs or does not fall.

    Losses are scalars whose name ends in "loss", or in "loss" and "step", "train" or "total", as
    "train_loss_step", but those of an evaluation, as "val/loss". Of several, those of parts or of
    players, as "g_loss", may climb and stay. NaN and infinity are an error.

    What training has gained is the fall from the median of the first 8 values to the lowest tenth
    of the last 512. A loss leaps if it is worse than any of the first 16 values, or in three steps
    in a row, by `leap` of that gain above the median of the 16 values before, by `deviations` times
    the usual deviation from such medians (1.4826 times the median absolute deviation: Hampel, 1974)
    and by twice the greatest deviation so far: so a loss that has gained no more than its noise
    never leaps, and a hard batch of a fitted model is no leap. Where less than a twentieth of the
    loss at the start is gained, as on a plateau, it leaps by a quarter of that loss. One step is a
    note, as nets that learn at a high rate leap and recover, unless it is recorded, has no smaller
    batch than is usual, and is worse than the first 16 values by the gain and by the loss at the
    start. So are several steps that are worse than the first 16 by the gain at most, unless the
    loss is known as a cross-entropy: targets that a network makes, as in Q-learning, are new once
    it is exchanged (Mnih et al., "Human-level control through deep reinforcement learning", 2015).
    A loss climbs if the median of the last 16 is `climb` times the greatest of the first 8, where
    these are the loss of a guess among the last output's channels, and `diverge` times that of any
    other.

    It does not fall if after `steps` steps the last third is no lower than the first 16, by Welch's
    t-test at `t` (1947), and it is, to `chance` of it, the loss of a guess, while neither the
    learning rate nor the norm of the gradients grows: before a plateau ends gradients grow
    exponentially (Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks", 2014). Until then, and of losses whose guess is not known, there is a
    note, once after `first` steps. The message says what was ruled out, and what looks wrong, of
    what usually keeps a loss where it is (see `evidence`).

    Of two logged losses that name the players of a game, as "d_loss" and "g_loss", the
    discriminator's has been at most `won` times its start in `steps` steps in a row, while the
    generator's is not below its start: then the discriminator has won, and teaches nothing any more
    (Arjovsky and Bottou, "Towards principled methods for training generative adversarial networks",
    2017). There is a note after `first` steps, as sound trainings may begin like that. The alert's
    value is the loss.
    """

    name: ClassVar[str] = "loss"
    advice: ClassVar[str] = "look at labels, data and learning rate at this step"

    deviations: float = at_least(0, 8.0)
    leap: float = at_least(0, 0.5)
    climb: float = at_least(0, 1.4)
    diverge: float = at_least(0, 30.0)
    first: int = 60
    steps: int = 300
    t: float = at_least(0, 1.0)
    chance: float = at_least(0, 0.02)
    won: float = at_least(0, 0.01)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("first", self.first, 2 * _NEAR, SCALARS)
        check_integer("steps", self.steps, 2 * _NEAR, SCALARS)

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        for name, value in values.items():
            found = self._won(name, history) if _player(_DISCRIMINATOR)(name) else None
            if found is None and is_loss(name):
                found = self._of(step, name, value, history)
            if found is not None:
                yield self.about(
                    (name, SCALAR),
                    step,
                    None,
                    found.says,
                    value,
                    severity=found.severity,
                    since=step - found.lasted,
                    advice=found.advice,
                )

    def _of(self, step: int, name: str, value: float, history: History) -> _Found | None:
        if not math.isfinite(value):
            helps = "look at the first tensor that is not finite; without one, at the loss itself"
            return _Found(f"is {value}", "error", helps)
        count, values = history.counts[name], history.scalars[name]
        if count <= _NEAR:
            return None
        is_time = count in (self.first, self.steps, 4 * self.steps)
        is_far = _is_far(values)
        if not (is_time or is_far or self._may_climb(values, history.first[name])):
            return None  # as in most steps
        begun = [x for x in history.first[name] if math.isfinite(x)]
        if len(begun) < 8:
            return None
        found = self._leap(_finite(values), begun, history, step) if is_far else None
        is_whole = _is_whole(name) or sum(map(is_loss, history.scalars)) == 1
        if found is None and is_whole:
            found = self._climbs(values, begun, history)
        if found is None and is_whole and is_time:
            found = self._flat(name, _finite(values), begun, history)
        return found

    def _won(self, name: str, history: History) -> _Found | None:
        """Whether a discriminator has won, whose loss has this name."""
        begun = _begun(history, name)
        past = history.scalars[name][: -self.steps - 1 : -1]
        if not past[0] <= self.won * begun:
            return None  # as in most steps
        lasted = [*(0 <= one <= self.won * begun for one in past), False].index(False)
        generators = list(filter(_player(_GENERATOR), history.scalars))
        if lasted < self.first or not generators or _has_fallen(history, generators[0]):
            return None
        says = (
            f"is {past[0]:.3g} after {begun:.3g} at the start, while {generators[0]} has not "
            "fallen: the discriminator has won"
        )
        helps = (
            "train the discriminator with a lower rate or more seldom, smooth its labels, or give "
            "it a gradient penalty or spectral norms"
        )
        return _Found(says, "warning" if lasted == self.steps else "note", helps, lasted - 1)

    def _leap(
        self, past: _Values, begun: list[float], history: History, step: int
    ) -> _Found | None:
        if len(past) <= _NEAR:
            return None
        usual = float(np.median(past[-_NEAR - 3 : -3]))
        value, lasting = float(past[-1]), float(past[-3:].min())
        start = float(np.median(begun[:8]))
        gain = start - float(np.quantile(past[:-1], 0.1))
        least = 0.25 * abs(start) if gain < 0.05 * abs(start) else self.leap * gain
        if value - usual <= least:
            return None
        before = past[:-3] if lasting - usual > self.leap * gain else past[:-1]
        if len(before) <= _NEAR + 3:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(before, _NEAR + 1)
        away = windows[:, -1] - np.median(windows[:, :-1], 1)
        noise = 1.4826 * float(np.median(np.abs(away - np.median(away))))
        if gain <= 10 * noise:
            return None
        far = max(self.leap * gain, self.deviations * noise, 2 * float(away.max()))
        lasts = lasting - usual > far
        if lasts or (value - usual > far and value > max(begun)):
            says = f"leaps to {value:.4g}: its median over the steps before is {usual:.4g}"
            helps = "look at the batch of this step; clip gradients, or lower the learning rate"
            if lasts and lasting <= max(begun) + gain and not history.targets.is_entropy:
                helps = f"right if a target network was copied; else {helps}"
                return _Found(says, "note", helps)
            is_usual = history.small.get(step) is False
            is_sure = lasts or (is_usual and value - max(begun) > max(gain, abs(start)))
            return _Found(says, "warning" if is_sure else "note", helps)
        return None

    def _may_climb(self, values: list[float], first: list[float]) -> bool:
        least = min(self.climb, self.diverge) * max(first[:8])
        return not max(values[-_NEAR:]) <= least  # NaN tells nothing

    def _climbs(self, values: list[float], begun: list[float], history: History) -> _Found | None:
        finite = [x for x in values[-2 * _NEAR :] if math.isfinite(x)]
        last, first = median(finite[-_NEAR:]), max(begun[:8])
        if not last > min(self.climb, self.diverge) * first > 0:
            return None  # as in most steps
        guess = _guess(history)
        is_guess = bool(guess) and abs(median(begun[:8]) - guess) <= 0.3 * guess
        if last > (self.climb if is_guess else self.diverge) * first:
            says = f"climbs: it is {last:.4g} after {first:.4g} at the start"
            return _Found(says, "warning", "lower the learning rate; look at the sign of the loss")
        return None

    def _flat(
        self, name: str, past: _Values, begun: list[float], history: History
    ) -> _Found | None:
        count = history.counts[name]
        if len(past) < count and count <= SCALARS:
            return None
        first, last = np.array(begun), past[-max(_NEAR, min(count, len(past)) // 3) :]
        fell, error = first.mean() - last.mean(), _error(first, last)
        rates = [rate for name, rate in history.scalars.items() if name.startswith("lr/")]
        if any(rate[-1] > rate[-len(last)] for rate in rates if len(rate) >= len(last)):
            return None
        if not fell <= max(self.t * error, 0.004 * abs(first.mean())) or past.min() <= 0:
            return None
        norms = np.array(history.scalars.get(GRADIENT_NORM, [])[-len(past) :])
        if _grows(norms):
            return None
        guess = _guess(history)
        is_guess = guess > 0 and abs(last.mean() - guess) <= self.chance * guess
        says = f"does not fall: it is {last.mean():.4g} after {first.mean():.4g} at the start"
        if is_guess:
            classes = max(history.classes or 0, 2)
            says = f"is still {last.mean():.4g}, no better than a guess among {classes} classes"
        ruled_out, advice = evidence(name, history)
        severity: Severity = "warning" if is_guess and count >= self.steps else "note"
        return _Found(says + ruled_out, severity, advice, lasted=count - 1)


@cache
def _player(names: str) -> Callable[[str], bool]:
    """Whether a scalar is the loss of one of these players, as "d_loss", "Loss_D", "train/errD"."""
    loss, gap = "(?:loss|err)", "[/_. -]?"
    pattern = rf"(?:\w+[/.])*(?:{loss}{gap}(?:{names})|(?:{names}){gap}{loss})"
    matches = re.compile(pattern, re.IGNORECASE).fullmatch
    return lru_cache(1024)(lambda name: bool(matches(name)))


def _begun(history: History, name: str) -> float:
    return median(history.first[name][:8])


def _has_fallen(history: History, name: str) -> bool:
    """Whether a scalar is below its start by a tenth of it."""
    begun = _begun(history, name)
    return median(history.scalars[name][-_NEAR:]) < begun - 0.1 * abs(begun)


def _is_far(values: list[float]) -> bool:
    """Whether the last value is further above those before than twice the greatest of these was:
    what leaps is, and few others are, which saves most steps their medians."""
    recent = values[-2 * _NEAR - 3 : -3]
    if len(recent) < 2 * _NEAR or not all(map(math.isfinite, recent)):
        return True
    at = recent.index(max(recent[_NEAR:]), _NEAR)
    away = recent[at] - median(recent[at - _NEAR : at])
    return values[-1] - median(recent[_NEAR:]) > max(2 * away, 0)


def _finite(values: list[float]) -> _Values:
    """The finite ones of the last values."""
    past: _Values = np.array(values[-SCALARS:])
    found: _Values = past[np.isfinite(past)]
    return found


def _is_whole(name: str) -> bool:
    """Whether a loss is no part of another, nor that of one player of several."""
    return bool(_WHOLE.fullmatch(name.lower()))


def _guess(history: History) -> float:
    """The cross-entropy of a guess among the last output's channels; 0 without several."""
    return math.log(history.classes) if history.classes and history.classes > 1 else 0.0


def _error(first: _Values, last: _Values) -> float:
    """The standard error of the difference of two means, by Welch."""
    return math.sqrt(first.var(ddof=1) / len(first) + last.var(ddof=1) / len(last))


def _grows(norms: _Values) -> bool:
    """Whether the last third of the norms of gradients is greater than the first, beyond chance."""
    norms = norms[(norms > 0) & np.isfinite(norms)]
    third = len(norms) // 3
    if third < 4:
        return False
    logs: _Values = np.log(norms)
    first, last = logs[:third], logs[-third:]
    return bool(last.mean() - first.mean() > max(1.645 * _error(first, last), 0.05))
