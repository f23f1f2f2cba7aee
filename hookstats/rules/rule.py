"""Rule: the base of all rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from hookstats.records.alerts import SCALAR, Alert, Severity
from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.rules.steps import Flags, Steps
from hookstats.stats.arguments import check_integer
from hookstats.stats.printable import printable


class RuleWarning(RuntimeWarning):
    """Warns of an alert, where the rule's action is "warn"."""


class RuleError(RuntimeError):
    """Ends the training, where the rule's action is "raise"; `alert` is why."""

    def __init__(self, alert: Alert) -> None:
        super().__init__(alert.message)
        self.alert = alert


Action = Literal["warn", "raise"] | Callable[[Alert], object]
"""What a rule does about its alerts."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Something that may go wrong, and how to see it in a step's record.

    There is an alert when a finding begins: once `patience` recorded steps in a row have had it. A
    finding that stays is reported once. A finding that went away and comes back is reported again,
    if `every` steps have passed since the last alert, and at once if it gets worse. There is one
    finding per tensor, unless `scope` says otherwise.

    Args:
        action: "warn" gives one RuleWarning per step; "raise" raises RuleError when the next step
            or the watch closes; a callable gets every Alert, on the flush thread.
        patience: 1 or more recorded steps in a row, of those that observed the tensor.
        every: the least number of steps between two alerts about the same finding.

    Raises:
        ValueError: an argument is something else.
    """

    name: ClassVar[str]
    """The name of the rule in alerts."""

    advice: ClassVar[str] = ""
    """What usually helps, as a clause without a capital; "" where nothing in general does."""

    scope: ClassVar[Literal["site", "kind", "run"]] = "site"
    """What has one finding at a time: one tensor; or, where the fault of one tensor spreads to all
    later ones, all tensors of a kind, or the whole run."""

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
        """The findings in `record`, whether they are new or not; `history` ends with that step.

        A rule changes nothing here, and knows nothing but the arguments.
        """

    def suspects(self, steps: Steps) -> Flags:
        """In which steps `check` may find something, bool [B]; it is called for these alone.

        Cheap, and for many steps at once: NaN and overflow give no warnings here. By default, it
        may in every step.
        """
        return steps.all

    def by_site(self, steps: Steps) -> NDArray[Any] | None:
        """What `check` finds in each site, [B, S], zero where it finds nothing; None: not known.

        In steps with equal rows, `check` finds the same tensors and severities, so that it is not
        called where all of that was reported before. It is called where any of a row is not zero;
        `suspects` is not asked.
        """
        return None

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterable[Alert]:
        """The findings in the scalars of a step, recorded or not; `history.scalars` ends with it.

        Scalars come after the record of their step, and now and then after those of later ones.
        """
        return ()

    def looks_at(self, name: str) -> bool:
        """Whether `check_scalars` may find something in a step that was closed and has a scalar of
        this name. It is called for these alone, and where findings of scalars may end.

        By default, it may in every step.
        """
        return True

    def alert(
        self,
        record: StepRecord,
        site: int,
        says: str,
        value: float,
        channel: int | None = None,
        severity: Severity = "warning",
    ) -> Alert:
        """An alert about the site with this index in `record`; `says` completes the sentence."""
        info = record.sites[site]
        return self.about(
            (info.name, info.kind), record.step, record.rank, says, value, channel, severity
        )

    def about(
        self,
        key: Key,
        step: int,
        rank: int | None,
        says: str,
        value: float,
        channel: int | None = None,
        severity: Severity = "warning",
    ) -> Alert:
        """An alert about a tensor that the record need not have, or about a scalar."""
        name, kind = key
        where = f"step {step}" + (f", rank {rank}" if rank else "")
        what = name if kind == SCALAR else f"{printable(kind)} of {name!r}"
        if not name:
            what = f"{printable(kind)} of the model"
        return Alert(
            step=step,
            rank=rank,
            site=name,
            kind=kind,
            channel=channel,
            rule=self.name,
            value=float(value),
            message=f"{self.name}: {where}: {what} {says}",
            severity=severity,
        )


@dataclass(frozen=True, kw_only=True)
class ScalarRule(Rule):
    """A rule about scalars; `check` is asked of records where a class has one of its own."""

    def check(self, record: StepRecord, history: History) -> Iterable[Alert]:
        return ()

    def suspects(self, steps: Steps) -> Flags:
        return steps.none if type(self).check is ScalarRule.check else steps.all

    @abstractmethod
    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterable[Alert]: ...


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
