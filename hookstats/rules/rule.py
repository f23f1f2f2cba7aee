"""Rule: what every rule is; Alert: what it says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.stats.arguments import check_integer
from hookstats.stats.printable import printable

Severity = Literal["warning", "error"]


@dataclass(frozen=True)
class Alert:
    """What a rule found in one tensor of one step.

    `site` and `kind` name the tensor as records do. `channel` is the first channel that it is
    about, None where it is about the whole tensor. `value` is the number that went beyond the
    threshold; the rule says which. `message` says it all in one sentence.
    """

    step: int
    rank: int
    site: str
    kind: str
    channel: int | None
    rule: str
    value: float
    message: str
    severity: Severity


class RuleWarning(RuntimeWarning):
    """Warns of an alert, where the rule's action is "warn"."""


class RuleError(RuntimeError):
    """Ends the training, where the rule's action is "raise"; `alert` is why."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(alert.message)
        self.alert = alert


Action = Literal["warn", "raise"] | Callable[[Alert], object]
"""What is done about alerts."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Something that may go wrong, and how to see it in a step's record.

    An alert is made when a finding begins: once it was there in `patience` recorded steps in a
    row. What stays is told once. What went away and comes back is told again, if `every` steps
    have passed since the last alert. Findings are told apart by tensor, or as `scope` says.

    Args:
        action: "warn" gives one RuleWarning a step, "raise" raises RuleError when the training's
            next step closes, or the watch; a callable gets every Alert, on the flush thread.
        patience: recorded steps in a row, 1 or more; of those that observed the tensor.
        every: steps between two alerts of the same finding.

    Raises:
        ValueError: any of these is something else.
    """

    name: ClassVar[str]
    """What alerts call the rule."""

    scope: ClassVar[Literal["site", "kind", "run"]] = "site"
    """Of what there is one finding at a time: where one tensor's fault becomes that of all after
    it, all tensors of a kind, or of the run."""

    action: Action = "warn"
    patience: int = 1
    every: int = 100

    def __post_init__(self) -> None:
        if not (self.action in ("warn", "raise") or callable(self.action)):
            raise ValueError(f'action = {self.action!r}: expected "warn", "raise" or a callable')
        for name in ("patience", "every"):
            check_integer(name, getattr(self, name), 1)

    @abstractmethod
    def check(self, record: StepRecord, history: History) -> Iterable[Alert]:
        """What is found in `record`, every time it is there; `history` ends with that step.

        Changes nothing, and knows nothing but its arguments.
        """

    def alert(
        self,
        record: StepRecord,
        site: int,
        says: str,
        value: float,
        channel: int | None = None,
        severity: Severity = "warning",
    ) -> Alert:
        """An alert of the site with this index in `record`; `says` completes the sentence."""
        info = record.sites[site]
        where = f"step {record.step}" + (f", rank {record.rank}" if record.rank else "")
        return Alert(
            step=record.step,
            rank=record.rank,
            site=info.name,
            kind=info.kind,
            channel=channel,
            rule=self.name,
            value=float(value),
            message=f"{self.name}: {where}: {printable(info.kind)} of {info.name!r} {says}",
            severity=severity,
        )


def at_least(rule: Any, least: float, *names: str) -> None:
    """Raise a ValueError where a threshold of `rule` is below `least`, or NaN."""
    for name in names:
        if not getattr(rule, name) >= least:
            raise ValueError(f"{name} = {getattr(rule, name)!r}: expected {least} or more")


def fraction(rule: Any, *names: str) -> None:
    """Raise a ValueError where a threshold of `rule` is no fraction."""
    for name in names:
        if not 0 < getattr(rule, name) <= 1:
            raise ValueError(
                f"{name} = {getattr(rule, name)!r}: expected a fraction above 0, up to 1"
            )
