"""Monitor: checks every step by rules, and acts on their alerts."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookstats.records.alerts import SCALAR, Alert, Grouping, Incident
from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord
from hookstats.rules.defaults import Rules, as_rules
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, RuleError, RuleWarning
from hookstats.rules.setup import Setup
from hookstats.rules.steps import Sites, in_steps, runs
from hookstats.runs.alerts import Told
from hookstats.stats.retries import Retries
from hookstats.stats.warning import warn

_NAMED = 3  # tensors, of several with an alert in one step


class Monitor:
    """A sink that reports alerts: each finding once, as `Rule` says.

    Of an incident (see `Incident`) it warns once, of the cause; and once more where a consequence
    is worse. Of notes it does not warn. A rule that fails is called again at later steps, see
    `Retries`; the other rules go on. Alerts that a rule's own action does not take are warned of.

    Args:
        rules: "default", or some rules; see `Rules`.
        setup: what training begins with; without it, rules that need it say nothing.

    Raises:
        ValueError: rules stands for no rules.
    """

    def __init__(self, rules: Rules = "default", setup: Setup | None = None) -> None:
        self.alerts: list[Alert] = []
        """All alerts so far."""
        self.failures: dict[str, str] = {}
        """The rules that failed, with the error of each and the calls that it missed."""
        self.keep: Callable[[Sequence[Told]], object] = lambda told: None
        """Called with new alerts; a run directory keeps them."""
        self.urgent = 0
        """How many alerts call for a closer look: errors, and warnings about logged numbers."""
        self._rules = list(as_rules(rules))
        self._retries = Retries(self.failures)
        self._history = History(setup)
        self._grouping = Grouping()
        self._findings: dict[int, dict[Hashable, _Finding]] = {}  # by rule, then what it is about
        self._live: set[int] = set()  # rules with findings that may end, by id
        self._unknown: set[int] = set()  # rules whose `suspects` failed, or was left out
        self._settled: set[int] = set()  # rules that last found nothing but what is reported
        self._rows: dict[int, NDArray[Any]] = {}  # what `by_site` gave of the last steps, by rule
        self._before: dict[int, tuple[Sites, bytes]] = {}  # what it gave of the step before
        self._of_scalars = {id(rule) for rule in self._rules if looks_at_scalars(rule)}
        # Those of them that look at the scalars of the last step, and the names of these.
        self._looking: tuple[tuple[str, ...], list[Rule]] | None = None
        self._to_raise: Alert | None = None
        self._seen: dict[int, Collection[str]] = {}  # the scalars that a record had, by step
        self._said: dict[int, int] = {}  # the worst level warned of, by incident

    def __repr__(self) -> str:
        return f"Monitor({', '.join(rule.name for rule in self._rules)})"

    @property
    def has_rules(self) -> bool:
        """Whether there are any rules."""
        return bool(self._rules)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The alerts so far by their causes."""
        return self._grouping.incidents()

    def __call__(self, record: StepRecord) -> None:
        """Check a step, and act on the alerts."""
        self.write_records([record])

    def write_records(self, records: Sequence[StepRecord]) -> None:
        """Check steps, and act on the alerts; many steps at once cost less than one by one."""
        for _ in self.each_of(records):
            pass

    def each_of(self, records: Sequence[StepRecord]) -> Iterator[None]:
        """`write_records`, with a stop after each step."""
        for given in self._examine(records):
            self._act(given)
            yield

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Check the scalars of a step that its record did not have, and act on the alerts."""
        if self._seen:
            seen = self._seen.pop(step, ())
            for earlier in [other for other in self._seen if other < step]:
                del self._seen[earlier]
            values = {name: value for name, value in values.items() if name not in seen}
        if values:
            self._act(self._examine_scalars(step, values, self._looking_at(values)))

    def write_unclosed(self, step: int, values: Mapping[str, float], iteration: int) -> None:
        """Check the scalars of an iteration that closed no step, and act on the alerts.

        iteration: how many of them the open step has so far.
        """
        self._history.unclosed = iteration
        looking = [rule for rule in self._rules if id(rule) in self._of_scalars]
        self._act(self._examine_scalars(step, values, looking))
        self._history.unclosed = 0

    def examine(self, record: StepRecord) -> list[Alert]:
        """The alerts of the next step, with its scalars, which are added to `alerts`; no action is
        taken."""
        given = [each for step in self._examine([record]) for each in step]
        return [alert for _, alerts in given for alert, _ in alerts]

    def examine_scalars(self, step: int, values: Mapping[str, float]) -> list[Alert]:
        """The alerts about the scalars of a step, in the same way."""
        given = self._examine_scalars(step, values, self._looking_at(values))
        return [alert for _, alerts in given for alert, _ in alerts]

    def tell(self, alert: Alert) -> None:
        """Keep an alert that is of no rule; no action is taken."""
        self.alerts.append(alert)
        self.keep([Told(alert, *self._grouping.add(alert), None)])

    @property
    def may_raise(self) -> bool:
        """Whether a rule has the action "raise"."""
        return any(rule.action == "raise" for rule in self._rules)

    def raise_pending(self) -> None:
        """Raise the first alert of a rule with the action "raise", once."""
        alert, self._to_raise = self._to_raise, None
        if alert is not None:
            raise RuleError(alert)

    def _act(self, given: _Given) -> None:
        for rule, alerts in given:
            if rule.action == "raise":
                self._to_raise = self._to_raise or alerts[0][0]
            elif rule.action == "warn" or not self._took(rule, alerts):
                alerts.sort(key=lambda each: not each[1])  # the news first
                if alerts[0][1] or rule.action != "warn":
                    helps = f"; what helps: {rule.advice}" if rule.advice else ""
                    warn(_together([alert for alert, _ in alerts]) + helps, RuleWarning)

    def _took(self, rule: Rule, alerts: Sequence[tuple[Alert, bool]]) -> bool:
        """Whether a rule's own action took its alerts."""

        def act() -> bool:
            for alert, _ in alerts:
                rule.action(alert)  # type: ignore[operator]  # it is callable
            return True

        what, outcome = f"the action of rule {rule.name!r}", "its alerts are warned of instead"
        return bool(self._retries.tried((id(rule), "action"), what, outcome, act))

    def _examine(self, records: Sequence[StepRecord]) -> Iterator[_Given]:
        """What the rules give, step by step."""
        for alike in runs(records):
            suspects = self._checked("history", partial(self._suspects, alike)) or {}
            for i, record in enumerate(alike):
                some = {rule for rule in suspects if suspects[rule][i]}
                examine = partial(self._examine_one, record, i, some)
                yield (self._checked("records", examine) if suspects else None) or []

    def _suspects(self, alike: Sequence[StepRecord]) -> dict[int, list[bool]]:
        """Add steps to the history; by the rule's id, in which of them it may find something."""
        steps = self._history.extend(alike)
        self._rows = {}

        def flags(rule: Rule) -> list[bool]:
            rows = rule.by_site(steps)
            found: list[bool] = (rule.suspects(steps) if rows is None else in_steps(rows)).tolist()
            if len(found) != len(steps):
                raise ValueError(f"suspects gives {len(found)} flags, expected {len(steps)}")
            if rows is not None:
                self._rows[id(rule)] = rows
            return found

        with np.errstate(all="ignore"):
            found = {
                id(rule): self._called(rule, "suspects", partial(flags, rule))
                for rule in self._rules.copy()
            }
        self._unknown = {rule for rule in found if found[rule] is None}
        return {rule: each or [False] * len(steps) for rule, each in found.items()}

    def _examine_one(self, record: StepRecord, place: int, suspects: Collection[int]) -> _Given:
        """What `suspects` and the rules about scalars give of a record, by its place in the last
        steps of the history."""
        self._history.show(place)
        values = dict(record.scalars)
        self._seen[record.step] = values.keys()
        self._history.push_scalars(values)
        of_scalars = {*map(id, self._looking_at(values)), *(self._live & self._of_scalars)}

        def look(rule: Rule) -> Iterator[_Look]:
            if id(rule) in suspects:
                yield "check", partial(rule.check, record, self._history)
            if id(rule) in of_scalars:
                check = partial(rule.check_scalars, record.step, values, self._history)
                yield "check_scalars", check

        def may_show(rule: Rule, key: Any) -> bool:
            return rule.scope != "site" or key in record or _is_of(key, values)

        sites = self._history.sites
        rows = {rule: (sites, found[place].tobytes()) for rule, found in self._rows.items()}
        before, self._before = self._before, {}
        same = {rule for rule in rows if before.get(rule) == rows[rule]}
        lasting = (same & self._settled) - self._of_scalars
        ending = self._live - lasting  # some of their findings may end
        looking = ({*suspects, *of_scalars} - lasting | ending) - self._unknown
        rules = [rule for rule in self._rules if id(rule) in looking]
        given = self._check(rules, look, record.step, may_show)
        self._before = rows
        return given

    def _looking_at(self, values: Mapping[str, float]) -> list[Rule]:
        """The rules that look at some of these scalars."""
        names = tuple(values)
        if self._looking is not None and self._looking[0] == names:  # as a rule
            return self._looking[1]
        of_scalars = [rule for rule in self._rules if id(rule) in self._of_scalars]
        flags = [
            self._called(rule, "looks_at", partial(map, rule.looks_at, names))
            for rule in of_scalars
        ]
        looking = [rule for rule, found in zip(of_scalars, flags, strict=True) if any(found or ())]
        if None not in flags:  # a rule that failed is asked again
            self._looking = names, looking
        return looking

    def _examine_scalars(
        self, step: int, values: Mapping[str, float], looking: list[Rule]
    ) -> _Given:
        """What the rules give that are looking at a step's scalars."""
        self._history.push_scalars(values)

        def look(rule: Rule) -> Iterator[_Look]:
            yield "check_scalars", partial(rule.check_scalars, step, values, self._history)

        def may_show(rule: Rule, key: Any) -> bool:
            return _is_of(key, values)

        # Rules that look at no scalars have seen nothing of this step, in which theirs could end.
        if ending := (self._live & self._of_scalars) - self._unknown:
            ending.update(map(id, looking))
            looking = [rule for rule in self._rules if id(rule) in ending]
        check = partial(self._check, looking, look, step, may_show)
        return self._checked("scalars", check) or []

    def _checked(self, part: str, action: Callable[[], _T]) -> _T | None:
        """What a part of the checks gives; None where it fails beside the rules themselves."""
        key = None, part
        given = self._retries.tried(key, "checking steps", "rules are disabled", action)
        if self._retries.is_ended(key):
            self._go_on_with([])
        return given

    def _called(self, rule: Rule, part: str, look: Callable[[], Iterable[_T]]) -> list[_T] | None:
        """What a part of a rule gives; None where it fails, or is left out after it failed."""
        key = id(rule), part
        found = self._retries.tried(
            key, f"rule {rule.name!r}", "the rule is disabled", lambda: list(look())
        )
        if found is None and self._retries.is_ended(key):
            self._go_on_with([other for other in self._rules if other is not rule])
        return found

    def _go_on_with(self, rules: list[Rule]) -> None:
        self._rules, self._looking = rules, None

    def _found(self, rule: Rule, looks: Iterable[_Look]) -> list[Alert] | None:
        """What a rule finds in a step; None where that is not known."""
        found: list[Alert] = []
        for part, look in looks:
            if (more := self._called(rule, part, look)) is None:
                return None
            found += more
        return found

    def _check(
        self,
        rules: Sequence[Rule],
        look: Callable[[Rule], Iterable[_Look]],
        step: int,
        may_show: Callable[[Rule, Any], bool],
    ) -> _Given:
        """What rules find in a step, beyond what they reported before."""
        given: _Given = []
        told: list[Told] = []
        for rule in rules:
            self._settled.discard(id(rule))
            found = self._found(rule, look(rule))
            if found is None or not (found or id(rule) in self._live):
                continue
            alerts = self._begun(rule, found, step, may_show)
            if not alerts:
                continue
            self.alerts += alerts
            new = []
            for alert in alerts:
                number, is_cause = self._grouping.add(alert)
                told.append(Told(alert, number, is_cause, thresholds(rule)))
                news = self._is_news(alert, number)
                new.append((alert, news))
                # Of an old incident, too: what it does to the training now is to be seen.
                self.urgent += alert.level > (alert.kind != SCALAR)
            given.append((rule, new))
        if told:
            self.keep(told)
        return given

    def _is_news(self, alert: Alert, incident: int) -> bool:
        """Whether to warn of an alert: of causes, and of consequences that are worse."""
        before = self._said.get(incident, 0)
        self._said[incident] = max(before, alert.level)
        return alert.level > before

    def _begun(
        self,
        rule: Rule,
        found: Sequence[Alert],
        step: int,
        may_show: Callable[[Rule, Any], bool],
    ) -> list[Alert]:
        """The findings that were not reported yet."""
        now: dict[Hashable, Alert] = {}
        for alert in found:
            now.setdefault(_key(rule, alert), alert)
        findings = self._findings.setdefault(id(rule), {})
        for key, finding in findings.items():
            if finding.is_live and key not in now and may_show(rule, key):
                finding.streak, finding.open = 0, False
        alerts = []
        for key, alert in now.items():
            finding = findings.setdefault(key, _Finding())
            finding.streak += 1
            # Before the last alert: the training went back to a checkpoint.
            waited = finding.told is None or not 0 <= step - finding.told < rule.every
            is_worse = alert.level > finding.level
            if finding.streak >= rule.patience and (is_worse or (waited and not finding.open)):
                finding.told, finding.open, finding.level = step, True, alert.level
                alerts.append(alert)
        live = [finding for finding in findings.values() if finding.is_live]
        (self._live.add if live else self._live.discard)(id(rule))
        if all(finding.open for finding in live):
            self._settled.add(id(rule))
        return alerts


_T = TypeVar("_T")
_Look = tuple[str, Callable[[], Iterable[Alert]]]
"""A part of a rule by its name, and its call."""

_Given = list[tuple[Rule, list[tuple[Alert, bool]]]]
"""Per rule the alerts that it gave in a step, each with whether to warn of it."""


def _is_of(key: Any, values: Mapping[str, float]) -> bool:
    """Whether a finding is about one of these scalars."""
    return isinstance(key, tuple) and key[1] == SCALAR and key[0] in values


def looks_at_scalars(rule: Rule) -> bool:
    """Whether a rule has a `check_scalars` of its own."""
    return type(rule).check_scalars is not Rule.check_scalars


def thresholds(rule: Rule) -> dict[str, Any]:
    """The thresholds of a rule by name, without its action."""
    named = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {name: value for name, value in named.items() if name != "action"}


@dataclass
class _Finding:
    streak: int = 0
    """The number of steps in a row that had the finding."""
    open: bool = False
    """Whether the finding was reported since it last began."""
    told: int | None = None
    """The step of the last alert."""
    level: int = -1
    """How bad that was."""

    @property
    def is_live(self) -> bool:
        """Whether a step without the finding would change anything."""
        return self.open or self.streak > 0


def _key(rule: Rule, alert: Alert) -> Hashable:
    """The key that two alerts of a rule share if they are about one finding."""
    if rule.scope == "site":
        return alert.site, alert.kind
    return plain_kind(alert.kind) if rule.scope == "kind" else alert.severity


def _together(alerts: Sequence[Alert]) -> str:
    """One message of all alerts of a rule in a step."""
    first, *others = alerts
    if not others:
        return first.message
    named = ", ".join(f"{a.kind} of {a.site!r}" for a in others[:_NAMED])
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{first.message} (also {named}{more})"
