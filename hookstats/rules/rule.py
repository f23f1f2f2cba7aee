"""Rule: the base of all rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from hookstats.records.alerts import SCALAR, Alert, Severity
from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.rules.facts import Fact
from hookstats.rules.history import History
from hookstats.stats.arguments import check_integer
from hookstats.stats.printable import printable


class RuleWarning(RuntimeWarning):
    """Warns of an alert, where the rule's action is "warn"."""

    severity: ClassVar[Severity] = "warning"
    """What is printed in front of it."""


class SevereWarning(RuleWarning):
    """Warns of an alert that is an error."""

    severity = "error"


class RuleError(RuntimeError):
    """Ends the training, where the rule's action is "raise"; `alert` is why."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(alert.message)
        self.alert = alert


Action = Literal["warn", "raise"] | Callable[[Alert], object]
"""What a rule does about its alerts."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Something that may go wrong, and how to see it in a step's record.

    There is an alert when a finding begins: once `patience` steps in a row that were looked at have
    had it. A finding that stays is reported once. A finding that went away and comes back is
    reported again, if `every` steps have passed since the last alert, and at once if it gets worse.
    There is one finding per tensor, unless `scope` says otherwise.

    Args:
        action: "warn" gives one RuleWarning per step; "raise" raises RuleError when the next step
            or the watch closes; a callable gets every Alert, on another thread.
        patience: 1 or more recorded steps in a row, counting steps that observed the tensor.
        every: the least number of steps between two alerts about the same finding.

    Raises:
        ValueError: an argument is something else.
    """

    name: ClassVar[str]
    """The name of the rule in alerts; by default that of the class, in small letters."""

    advice: ClassVar[str] = ""
    """What usually helps, as a clause without a capital; "" where nothing in general does."""

    scope: ClassVar[Literal["site", "kind", "run"]] = "site"
    """What has one finding at a time: one tensor; or, where the fault of one tensor spreads to all
    later ones, all tensors of a kind, or the whole run."""

    action: Action = "warn"
    patience: int = 1
    every: int = 100

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", cls.__name__).lower()

    def __post_init__(self) -> None:
        if all(getattr(type(self), name) is getattr(Rule, name) for name in _CHECKS):
            raise TypeError(f"{type(self).__name__}: expected a method {', '.join(_CHECKS)}")
        if not (self.action in ("warn", "raise") or callable(self.action)):
            raise ValueError(f'action = {self.action!r}: expected "warn", "raise" or a callable')
        for name in ("patience", "every"):
            check_integer(name, getattr(self, name), 1)
        for one in fields(self):
            value = getattr(self, one.name)
            allows, expected = one.metadata.get(_ALLOWED, (lambda value: True, ""))
            if not allows(value):
                raise ValueError(f"{one.name} = {value!r}: expected {expected}")

    def check(self, record: StepRecord, history: History) -> Iterable[Alert]:
        """The findings in `record`, whether they are new or not; `history` ends with that step.

        A rule changes nothing here, and knows nothing but the arguments.
        """
        return ()

    def suspects(self, record: StepRecord, history: History) -> bool:
        """Whether `record` begins what may become a finding, so that the next steps are recorded
        one by one; seldom true of a sound training."""
        return False

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterable[Alert]:
        """The findings in the scalars of a step, recorded or not; `history.scalars` ends with it.

        Scalars come after the record of their step, and now and then after those of later ones.
        """
        return ()

    def check_fact(self, step: int, fact: Fact, history: History) -> Iterable[Alert]:
        """The findings in what is seen of the training without reading a tensor.

        A fact comes when it is seen, at most a few times in a run; each finding is sure at once,
        whatever `patience` is.
        """
        return ()

    def alert(
        self,
        record: StepRecord,
        site: int,
        says: str,
        value: float,
        channel: int | None = None,
        severity: Severity = "warning",
        **more: Any,
    ) -> Alert:
        """An alert about the site with this index in `record`; `says` completes the sentence.

        more: `since` and `advice`, as `about` has them.
        """
        info = record.sites[site]
        key, step, rank = (info.name, info.kind), record.step, record.rank
        return self.about(key, step, rank, says, value, channel, severity, **more)

    def about(
        self,
        key: Key,
        step: int,
        rank: int | None,
        says: str,
        value: float,
        channel: int | None = None,
        severity: Severity = "warning",
        since: int | None = None,
        advice: str = "",
    ) -> Alert:
        """An alert about a tensor that the record need not have, or about a scalar.

        since: the step since which it is so, where that is known; by default, the first of the
        `patience` steps in a row that had the finding. advice: what helps, where that is another
        thing than the rule's own advice.
        """
        name, kind = key
        where = f"step {step}" + (f", rank {rank}" if rank else "")
        what = name if kind == SCALAR else f"{printable(kind)} of {name!r}"
        if not name:
            what = f"{printable(kind)} of the model"
        found = Alert(
            step=step,
            rank=rank,
            site=name,
            kind=kind,
            channel=channel,
            rule=self.name,
            value=float(value),
            message=f"{self.name}: {where}: {what} {says}",
            severity=severity,
            advice=advice,
        )
        return found if since is None else found.lasting(since)


def at_least(least: float, default: float) -> Any:
    """A threshold that must be `least` or more, which NaN is not."""
    allowed = (lambda value: value >= least, f"{least} or more")
    return field(default=default, metadata={_ALLOWED: allowed})


def fraction(default: float) -> Any:
    """A threshold that must be a fraction."""
    allowed = (lambda value: 0 < value <= 1, "a fraction above 0, up to 1")
    return field(default=default, metadata={_ALLOWED: allowed})


_CHECKS = ("check", "check_scalars", "check_fact")
"""The methods of which a rule has some."""
_ALLOWED = "allowed"
"""What the metadata of a threshold has: whether a value is allowed, and what is expected."""
