"""Rules about what goes into the loss: logits, targets, and gradients that are not zeroed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.rules.facts import Fact, LoopFact
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.stats.state import COUNT, L1, MEAN

_KEPT = "has the gradient of the step before, too: gradients are not zeroed"
_BOUND = (
    *("ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Sigmoid", "Tanh", "Hardtanh"),
    *("Softmax", "Softplus"),
)
"""What has no place between logits and their loss."""


@dataclass(frozen=True, kw_only=True)
class Logits(Rule):
    """The loss takes the softmax of what an activation or a softmax has changed.

    Cross-entropy is of logits as the last layer gives them, of either sign and any size ("the input
    is expected to contain the unnormalized logits": the documentation of
    torch.nn.CrossEntropyLoss). The rule knows that loss by its gradient, whose sum over the classes
    is zero. So is that of other losses of probabilities: behind a softmax, a logged loss must lie
    where the cross-entropy of n numbers between 0 and 1 lies, between log(e + n - 1) - 1 and
    log(e + n - 1). The alert's value is the number of classes.
    """

    name: ClassVar[str] = "logits"
    advice: ClassVar[str] = "give the loss the last layer's output"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    patience: int = 2

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.last_output is None:
            return
        info = record.sites[history.last_output]
        kind = history.setup.modules.get(info.name, "")
        if kind not in _BOUND or (kind == "Softmax" and not _is_of_numbers(history, info.channels)):
            return
        # Scores of each of n for each of n others are those of attention.
        is_square = history.columns("count")[history.last_output] == info.channels**2
        if not is_square and history.shows_entropy:
            says = f"comes from a {kind}, and the loss takes its softmax: give it what comes before"
            yield self.alert(record, history.last_output, says, info.channels)


def _is_of_numbers(history: History, classes: int) -> bool:
    """Whether a logged loss may be the cross-entropy of numbers between 0 and 1."""
    most = math.log(math.e + classes - 1)
    losses = [past[-1] for name, past in history.scalars.items() if name.lower().endswith("loss")]
    return any(most - 1 <= loss <= most for loss in losses)


@dataclass(frozen=True, kw_only=True)
class Targets(Rule):
    """All targets of a batch are of one class, step after step; or most, which is a note.

    The gradient of a cross-entropy is negative for the class of the target alone, as what is
    predicted is less than 1. There is an alert if in `patience` steps in a row only one of three or
    more classes has such a gradient, among `least` targets or more, after 16 steps in which several
    had; or else, as one class may be rare, among `many` targets from the start. So it is where a
    loader sorts by class, or a reader of labels fails. The alert's channel is the class, its value
    the number of targets.

    At first, what is predicted is the same for all classes, and the negative part of the gradient
    is as large as the number of targets. A note says that one of `classes` or more has more than
    `share` of it in the first `patience` steps, as where padding counts. Its value is the share.
    """

    name: ClassVar[str] = "targets"
    advice: ClassVar[str] = "shuffle; look at the labels of this step"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    least: int = at_least(2, 8)
    many: int = at_least(2, 400)
    share: float = fraction(0.8)
    classes: int = at_least(2, 20)
    patience: int = 3

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        site, seen = history.last_gradient, history.targets
        if site is None or record.sites[site].channels < 3:
            return
        # A model that is sure of all targets but one shows that one, too.
        if not (history.shows_entropy or (seen.is_entropy and not seen.several)):
            return
        rows = slice(*record.offsets[site : site + 2])
        many = int(record.tallies[rows, COUNT].min())
        is_new = seen.several >= 16 or seen.alike * many >= self.many
        if seen.alike and many >= self.least and is_new:
            says = f"shows that all {many} targets of the batch are of class {seen.channel}"
            yield self.alert(record, site, says, many, seen.channel)
        elif history.pushed <= self.patience and many >= 4 * self.classes:
            yield from self._mostly(record, site)

    def _mostly(self, record: StepRecord, site: int) -> Iterator[Alert]:
        """Whether most targets are of one class, as far as the gradients of logits tell."""
        rows = slice(*record.offsets[site : site + 2])
        sums = record.moments[rows, MEAN] * record.tallies[rows, COUNT]
        negative = (record.moments[rows, L1] - sums) / 2
        most, share = int(negative.argmax()), float(negative.max() / negative.sum())
        if len(negative) >= self.classes and share > self.share:
            says = f"shows that about {share:.0%} of all targets are of class {most}"
            helps = "if that is padding, give its number to the loss as ignore_index"
            yield self.alert(record, site, says, share, most, "note", advice=helps)


@dataclass(frozen=True, kw_only=True)
class Accumulation(Rule):
    """Gradients of the step before are still there: they were not zeroed.

    The gradient of a bias is the sum of the gradients of its layer's outputs (see `history.Sums`),
    times a factor where gradients are clipped or unscaled. There is an alert if that explains less
    than 1 - `share` of the squares over all biases, and together with the gradients of the step
    before all but `rest` of them, where both have one weight, to `apart` of it. The alert is about
    the first bias; its value is the weight of the gradients before, by that of the new ones. Where
    gradients stay the same tensors, the backward that adds to them tells whether anything changed
    them since the last step.
    """

    name: ClassVar[str] = "accumulation"
    advice: ClassVar[str] = "zero gradients once per step"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    share: float = at_least(0, 0.1)
    rest: float = at_least(0, 0.01)
    apart: float = at_least(0, 0.05)
    patience: int = 2

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        sums = history.sums
        new, before, found = sums.sums, sums.before, sums.biases
        if sums.first is None or len(found) < 8:
            return
        squares, own = _dot(found, found), _dot(new, new)
        past, both = _dot(before, before), _dot(new, before)
        if not (np.isfinite([squares, own, past]).all() and squares > 0 and own > 0):
            return
        with_new, with_past = _dot(found, new), _dot(found, before)
        apart = own * past - both**2
        if squares - with_new**2 / own < self.share * squares or apart <= 1e-9 * own * past:
            return
        weight = (with_new * past - with_past * both) / apart  # least squares
        weight_before = (with_past * own - with_new * both) / apart
        rest = squares - weight * with_new - weight_before * with_past
        ratio = weight_before / weight if weight > 0 else 0.0
        if rest <= self.rest * squares and abs(ratio - 1) <= self.apart:
            yield self.alert(record, sums.first, _KEPT, ratio)

    def check_fact(self, step: int, fact: Fact, history: History) -> Iterator[Alert]:
        if isinstance(fact, LoopFact) and fact.what == "kept":
            yield self.about((fact.names[0], "param_grad"), step, None, _KEPT, 1.0)


def _dot(a: Float64, b: Float64) -> float:
    """The sum of products; without BLAS, whose threads would cost more than the sum."""
    return float(np.multiply(a, b).sum())
