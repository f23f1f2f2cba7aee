"""Rules about how fast training goes: learning rates, weight decay, the size of updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import SCALAR, Alert
from hookstats.records.norms import GRADIENT_NORM
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.rules.history import RATE, History, is_loss
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.rules.setup import Group

_SAME = 1e-3  # values that differ by no more are the same


@dataclass(frozen=True, kw_only=True)
class LearningRate(Rule):
    """A learning rate jumps from one step to the next, or fades before training gets anywhere.

    It rises to `factor` times its last value or more, beyond where it ever was, or falls to zero
    for three steps or by the square of `factor`, after `steps` steps. Schedules change it slowly,
    by a factor of ten downwards, or back to where they began (warm restarts: "SGDR", Loshchilov and
    Hutter, 2017); a warm-up that begins at next to nothing is over before. It has faded if for half
    of all steps it was below `faded` times its greatest, while a logged loss is above 0.8 times its
    start, as where a schedule for epochs steps with each batch. The alert's value is the new rate.
    """

    name: ClassVar[str] = "learning rate"
    advice: ClassVar[str] = "look at the schedule, and at what a resumed run loads of it"

    factor: float = at_least(1, 8.0)
    faded: float = fraction(1e-3)
    steps: int = at_least(1, 8)

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        for name, rate in values.items():
            past = history.scalars[name]
            if not name.startswith(RATE) or len(past) <= self.steps:
                continue
            if rate < self.faded * history.greatest[name]:
                yield from self._fades(step, name, rate, history)
            if not max(past[-4:]) > 0:
                continue
            ratio = rate / past[-2] if past[-2] else 0.0
            up = ratio >= self.factor and rate > 1.01 * history.greatest[name]
            # A schedule may touch zero for a step.
            far = past[-3:] == [0.0] * 3 and past[-4] > 1e-3 * max(past)
            down = 0 < ratio <= self.factor**-2 and past[-2] > 0.01 * max(past)
            if up or far or down:
                says = f"jumps from {past[-4 if far else -2]:.3g} to {rate:.3g}"
                yield self.about((name, SCALAR), step, None, says, rate)

    def _fades(self, step: int, name: str, rate: float, history: History) -> Iterator[Alert]:
        most = history.greatest[name]
        below = sum(one < self.faded * most for one in history.scalars[name])
        if below < max(16, history.counts[name] / 2):
            return
        for loss in filter(is_loss, history.scalars):
            begun = float(np.median(history.first[loss][:8]))
            now = float(np.median(history.scalars[loss][-8:]))
            if now > 0.8 * begun > 0:
                says = (
                    f"has fallen from {most:.3g} to {rate:.2g}, while {loss} is {now:.4g} after "
                    f"{begun:.4g} at the start"
                )
                helps = "step the schedule once per epoch, or give it the number of steps"
                key, since = (name, SCALAR), step - below + 1
                yield self.about(key, step, None, says, rate, since=since, advice=helps)
                return


@dataclass(frozen=True, kw_only=True)
class WeightDecay(Rule):
    """Weight decay shrinks the weights away.

    The learning rate times the weight decay is `most` or more: the weights forget what they learned
    within 1 / `most` steps, while good settings take an epoch or more (Wang and Aitchison, "How to
    set AdamW's weight decay", 2024). The rule knows optimizers whose decay is that product: SGD and
    AdamW. The alert's value is the product.

    Adam adds the decay to the gradient, and its steps have one size whatever the sum (Loshchilov
    and Hutter, "Decoupled weight decay regularization", 2019). There is an alert if the decay times
    the rms of the weight at the start is `coupled` times the rms of the gradient, in the median of
    all matrices and by the greatest gradients of the first `steps` steps: then steps only shrink
    weights. The alert's value is that ratio.
    """

    name: ClassVar[str] = "weight decay"
    advice: ClassVar[str] = "lower it: 0.01 to 0.1 is usual for AdamW, 1e-4 for SGD"

    most: float = 0.02
    coupled: float = at_least(1, 5.0)
    steps: int = at_least(2, 10)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        setup = history.setup
        if history.pushed != self.steps:
            return
        decays = {
            weight.name: setup.groups[weight.group].weight_decay * weight.rms
            for weight in setup.weights
            if weight.rms and len(weight.shape) > 1 and weight.group is not None
            # Of most rows of an embedding, a batch has no gradient.
            if not setup.type_of(weight.name).startswith("Embedding")
            if setup.groups[weight.group].algorithm == "Adam"
        }
        most = np.column_stack((history.past_rms[:, 1 - self.steps :], history.rms)).max(1)
        ratios = {
            i: decays[site.name] / float(most[i])
            for i, site in enumerate(record.sites)
            if site.kind == "param_grad" and site.name in decays and most[i] > 0
        }
        middle = float(np.median(list(ratios.values()))) if ratios else 0.0
        if middle >= self.coupled:
            says = (
                f"is small beside the weight decay that Adam adds to it, {middle:.3g} times as "
                "much in the median of all weights: steps only shrink them"
            )
            helps = "use AdamW, whose decay stays apart from the gradient, or 1e-4 or less"
            yield self.alert(record, min(ratios), says, middle, advice=helps)

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        for i, group in enumerate(history.setup.groups):
            rate = values.get(f"{RATE}{i}")
            if rate is None or not group.weight_decay or group.algorithm == "Adam":
                continue
            part = rate * group.weight_decay
            if part >= self.most:
                decay = f"weight_decay = {group.weight_decay:g}"
                says = f"and {decay} take {part:.1%} of each weight in a step"
                yield self.about((f"{RATE}{i}", SCALAR), step, None, says, part)


@dataclass(frozen=True, kw_only=True)
class Clipping(Rule):
    """Gradients are no longer clipped, or always.

    The norm of all gradients (`norms.gradient_norm`) was at its greatest value, to `tolerance` of
    it, in `share` or more of the last 24 steps: so it is where norms are clipped (Pascanu et al.,
    2013). Now it is `factor` times as large. A note says that it was there in each of the first 40
    steps. The alert's value is the norm.
    """

    name: ClassVar[str] = "clipping"
    advice: ClassVar[str] = "clip gradients before each step"

    share: float = fraction(0.4)
    factor: float = at_least(1, 1.05)
    tolerance: float = 1e-3

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        norm, last = values.get(GRADIENT_NORM), history.scalars[GRADIENT_NORM][-25:-1]
        is_time = norm is not None and history.counts[GRADIENT_NORM] == 40
        if is_time and (bound := always_clipped(history)):
            says = f"is {bound:.4g} in each step: gradients are always clipped"
            helps = "raise max_norm, unless the learning rate is meant for it"
            key = (GRADIENT_NORM, SCALAR)
            yield self.about(key, step, None, says, bound, severity="note", advice=helps)
        if norm is None or len(last) < 16 or norm <= self.factor * max(last):
            return  # as in most steps
        past = np.array(last)
        if not np.isfinite(past).all():
            return
        most = float(past.max())
        clipped = float((past >= (1 - self.tolerance) * most).mean())
        if clipped >= self.share and norm > self.factor * most > 0:
            says = (
                f"is {norm:.4g}: in the steps before it was never above {most:.4g}, and in "
                f"{clipped:.0%} of them exactly there, as clipping leaves it"
            )
            yield self.about((GRADIENT_NORM, SCALAR), step, None, says, norm)


def always_clipped(history: History) -> float:
    """The norm that all gradients so far were clipped to; 0 where they were not, or where every
    tensor stays as it is, as with a single batch and a learning rate of 0."""
    norms = history.scalars.get(GRADIENT_NORM, [])
    if len(norms) < 8 or not all(0 < norm < math.inf for norm in norms) or not history.pushed:
        return 0.0
    past = history.past_rms
    varies = (np.fmax.reduce(past, 1) > (1 + _SAME) * np.fmin.reduce(past, 1)).any()
    return norms[-1] if varies and min(norms) >= (1 - _SAME) * max(norms) else 0.0


@dataclass(frozen=True, kw_only=True)
class UpdateSize(Rule):
    """Steps are far too large, or next to nothing, beside the weights.

    What a step changes, by the rms of the weights at the start: the learning rate times the
    gradient for SGD (by the root of 1 - momentum**2, as gradients change), the learning rate for
    Adam and its kin, whose first steps are that large whatever the gradient, unless it is below
    their epsilon (Kingma and Ba, 2015). A rule of thumb is 1e-3 (Karpathy, CS231n). There is an
    alert if the median over all weights is above `most` in `lasting` steps in a row, as momentum
    may overshoot for a step or two, or above a hundred times that in one; if that over the matrices
    of a parameter group is above `group` times `most` in as many; or if that of every weight is
    below `least` in ten, while the learning rate does not grow. Weights that begin with an rms
    below `rms` have still to get their size, and do not count. The rule looks at the first `steps`
    steps, as the weights change later. The alert's value is the median ratio.
    """

    name: ClassVar[str] = "update size"
    advice: ClassVar[str] = "try the learning rate that the alert names"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    most: float = at_least(0, 1.0)
    least: float = at_least(0, 1e-5)
    steps: int = 30
    lasting: int = 3
    group: float = at_least(1, 10.0)
    rms: float = 0.003

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > self.steps:
            return
        recent = np.column_stack((history.past_rms[:, 1 - self.lasting :], history.rms))
        ratios = relative_updates(history, recent.min(1), self.rms)
        now = relative_updates(history, history.rms, self.rms)
        if not now:
            return
        middle = float(np.median(list(ratios.values()))) if ratios else 0.0
        at_once = float(np.median(list(now.values())))
        largest = max(now, key=lambda site: now[site])
        if middle > self.most or at_once > 100 * self.most:
            says = (
                f"changes the weight by {now[largest]:.3g} times its rms in one step, more than "
                "any other weight"
            )
        elif now[largest] < self.least and self._lasts(history):
            says = (
                f"changes the weight by only {now[largest]:.2g} times its rms in one step, and "
                "others change less"
            )
        else:
            yield from self._of_groups(record, history, ratios)
            return
        says += f"; the median of all is {at_once:.2g}"
        helps = _better_rate(record.sites[largest].name, at_once, history)
        yield self.alert(record, largest, says, at_once, advice=helps)

    def _of_groups(
        self, record: StepRecord, history: History, ratios: dict[int, float]
    ) -> Iterator[Alert]:
        """What is to be said of a parameter group whose rate is far larger than that of others."""
        setup = history.setup
        if len(setup.groups) < 2:
            return
        weights = {weight.name: weight for weight in setup.weights}
        groups: dict[int | None, list[int]] = {}
        for site in ratios:
            weight = weights[record.sites[site].name]
            if sum(n > 1 for n in weight.shape) > 1:
                groups.setdefault(weight.group, []).append(site)
        for group, sites in groups.items():
            middle = float(np.median([ratios[site] for site in sites]))
            if middle > self.group * self.most:
                says = (
                    f"changes the weight by {ratios[sites[0]]:.3g} times its rms in one step, by "
                    f"the learning rate of group {group}; the median of the group is {middle:.2g}"
                )
                helps = _better_rate(record.sites[sites[0]].name, middle, history)
                yield self.alert(record, sites[0], says, middle, advice=helps)
                return

    def _lasts(self, history: History) -> bool:
        """Whether steps have been as small in ten steps in a row."""
        greatest = np.column_stack((history.past_rms[:, -9:], history.rms)).max(1)
        ratios = relative_updates(history, greatest, self.rms)
        small = bool(ratios) and max(ratios.values()) < self.least
        return small and history.pushed >= 10 and not (_grows(history) or _has_faded(history))


@dataclass(frozen=True, kw_only=True)
class Rounding(Rule):
    """Updates of weights in bf16 or fp16 are rounded away.

    An update below half a unit in the last place of a weight leaves the weight as it is: below
    2**-9 of it in bf16, 2**-12 in fp16 (Zamirai et al., "Revisiting BFloat16 Training", 2020). The
    alert comes if the median update (see `UpdateSize`) is below `share` of that, `patience` steps
    in a row. Stochastic rounding, or a copy of the weights in fp32, mends it.
    """

    name: ClassVar[str] = "rounding"
    advice: ClassVar[str] = "keep weights in fp32, or round stochastically"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    share: float = 0.25
    patience: int = 5

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        ratios = relative_updates(history, history.rms)
        found = {
            site: ratio for site, ratio in ratios.items() if record.sites[site].dtype in _HALF_UNIT
        }
        if not found or _grows(history):
            return
        middle = float(np.median(list(found.values())))
        first = min(found)
        least = _HALF_UNIT[record.sites[first].dtype]
        if 0 < middle < self.share * least:
            says = (
                f"changes weights by {middle:.2g} of their rms in one step, in the median: "
                f"{record.sites[first].dtype} rounds away changes below {least:.2g}"
            )
            yield self.alert(record, first, says, middle)


def _better_rate(weight: str, ratio: float, history: History) -> str:
    """What helps where steps change weights by `ratio` of their rms."""
    setup = history.setup
    group = next((w.group for w in setup.weights if w.name == weight), None)
    if not any(past[-1] for past in rates_of(history)):
        return "raise the learning rate: it is 0"
    if group is None or not ratio > 0:
        return ""
    bound, epsilon = always_clipped(history), setup.groups[group].epsilon
    if ratio < _USUAL and bound:
        return f"raise max_norm: every step clips gradients to {bound:.3g}"
    if ratio < _USUAL and epsilon > 1e-3:
        return f"lower eps, which is {epsilon:g}: 1e-8 is usual"
    rate = history.scalars[f"{RATE}{group}"][-1] * _USUAL / ratio
    return f"try a rate near {rate:.1g}, which changes weights by a thousandth in a step"


_USUAL = 1e-3
"""The rule of thumb of `UpdateSize`."""
_HALF_UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-12}


def relative_updates(history: History, rms: Float64, least: float = 0.0) -> dict[int, float]:
    """By the site of a weight's gradient: the size of the next step, by the rms of the weight at
    the start. Weights of two dimensions or more that begin with an rms above `least`, of optimizers
    whose steps are known; rms: of the gradients, [S]."""
    setup = history.setup
    if not setup.groups:
        return {}
    found = {}
    for weight in setup.weights:
        site = history.sites.at.get((weight.name, "param_grad"))
        if site is None or weight.group is None or len(weight.shape) < 2 or not weight.trained:
            continue
        if weight.rms is None or weight.rms <= least:
            continue
        past = history.scalars.get(f"{RATE}{weight.group}")
        size = _size(setup.groups[weight.group], float(rms[site]))
        if past and math.isfinite(size):
            found[site] = past[-1] * size / weight.rms
    return found


def _size(group: Group, gradient: float) -> float:
    """A step, by the learning rate; NaN for optimizers that are not known."""
    if group.algorithm == "SGD":
        return gradient / math.sqrt(max(1 - group.momentum**2, 0.01))
    if group.algorithm in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion"):
        return gradient / (gradient + group.epsilon) if gradient else 0.0
    return math.nan


def _has_faded(history: History) -> bool:
    """Whether a learning rate is next to nothing beside its greatest: `LearningRate` tells."""
    return any(past[-1] < 1e-3 * max(past) for past in rates_of(history))


def _grows(history: History) -> bool:
    """Whether a learning rate is in its warm-up."""
    return any(len(past) > 1 and past[-1] > past[-2] for past in rates_of(history))


def rates_of(history: History) -> list[list[float]]:
    """Of each parameter group: the learning rate, step by step."""
    return [past for name, past in history.scalars.items() if name.startswith(RATE) and past]
