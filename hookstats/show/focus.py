"""Where to look for what an alert says: the step, the recorded tensor, the statistic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from hookstats.records.alerts import SCALAR, Alert
from hookstats.records.keys import Key, plain_kind

_STATISTICS = {
    "dead channels": "dead",
    "dropout": "zero",
    "non-finite": "nonfinite",
    "underflow": "zero",
}

_UNSEEN = (
    *("untrained", "loop", "mode", "logits", "targets", "accumulation", "repeated inputs"),
    *("update size", "rounding", "collapse"),
)
"""The rules whose findings are no odd size of a whole tensor."""


def is_size(alert: Alert) -> bool:
    """Whether the alert says that a tensor's size is odd, beside its past or other layers."""
    return alert.rule not in _UNSEEN


def statistic_of(alert: Alert) -> str:
    """The statistic in which the finding of the alert's rule is seen."""
    return _STATISTICS.get(alert.rule, "rms")


def step_of(alert: Alert, steps: Sequence[int]) -> int:
    """The step where it began if that is among the recorded ones, or else the one where it was
    noticed, or the next one, or the last.

    steps: ascending, at least one.
    """
    for step in (alert.since, alert.step):
        place = bisect_left(steps, step)
        if step in steps[place : place + 1]:
            return step
    return steps[min(place, len(steps) - 1)]


def tensor_of(alert: Alert, keys: Collection[Key]) -> Key | None:
    """The recorded tensor that shows what the alert says; None for a number of the training.

    A tensor that was not recorded, such as a parameter, shows in the output of its module.
    """
    name, owner = alert.site, alert.site.rpartition(".")[0]
    if (name, alert.kind) in keys:
        return name, alert.kind
    if alert.kind == SCALAR:
        return None
    alike = [key for key in keys if key[0] in (name, owner)]

    def distance(key: Key) -> tuple[bool, bool]:
        return key[0] != owner or plain_kind(key[1]) != "output", key[0] != name

    return min(alike, key=distance, default=None)
