"""Monitor: checks steps by rules, and acts on their alerts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from hookstats.records.alerts import SCALAR, Alert, Grouping, Incident, Incidents
from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord
from hookstats.rules.defaults import Rules, as_rules
from hookstats.rules.facts import Fact
from hookstats.rules.history import History, is_loss
from hookstats.rules.rule import Rule, RuleError, RuleWarning, SevereWarning
from hookstats.rules.setup import Setup
from hookstats.runs.alerts import AlertEntry
from hookstats.stats.messages import warn
from hookstats.stats.retries import Retries
from hookstats.stats.state import NAN, NEGINF, POSINF

_NAMED = 3  # tensors, of several with an alert in one step

INTERVAL = 0.1
"""How many seconds lie between two steps that are looked at, after the first `FIRST`."""

FIRST = 128
"""How many recorded steps are looked at, however fast they come."""


class Monitor:
    """A sink that reports alerts: each finding once, as `Rule` says.

    Of an incident (see `Incident`) it warns once, of the cause; and once more where a consequence
    is worse. Of notes it does not warn. A rule that fails is called again at later steps, see
    `Retries`; the other rules go on. Alerts that a rule's own action does not take are warned of.

    Scalars are checked at every step, and so is whether all values are finite. Tensors are looked
    at in the first 128 recorded steps, and then every `interval` seconds.

    Args:
        rules: "default", or some rules; see `Rules`.
        setup: what training begins with; without it, rules that need it say nothing.
        interval: seconds; 0 to look at all recorded steps.
        unread: see `History.unread`.

    Raises:
        ValueError: rules stands for no rules.
    """

    def __init__(
        self,
        rules: Rules = "default",
        setup: Setup | None = None,
        interval: float = INTERVAL,
        unread: Iterable[str] = (),
    ) -> None:
        self.alerts: list[Alert] = []
        """All alerts so far."""
        self.failures: dict[str, str] = {}
        """The rules that failed, with the error of each and the calls that it missed."""
        self.keep: Callable[[Sequence[AlertEntry]], object] = lambda entries: None
        """Called with new alerts; a run directory keeps them."""
        self.perform: Callable[[Rule, Callable[[], Any]], Any] = lambda rule, action: action()
        """Calls what is a user's of a rule, which may raise; on a thread where it may hang."""
        self.begun: Callable[[Incident], object] = lambda incident: None
        """Called with each incident that is worse than a note, once its first step is checked."""
        self.urgent = 0
        """How much calls for a closer look: errors, warnings about logged numbers, all alerts of a
        loss, and what rules suspect."""
        self._rules = list(as_rules(rules))
        self._retries = Retries(self.failures)
        self._history = History(setup)
        self._history.unread.update(unread)
        self._interval = interval
        self._looked = -np.inf  # when tensors were looked at last
        self._bad_steps = 0  # how many steps in a row had non-finite values
        self._grouping = Grouping()
        self._findings: dict[int, dict[Hashable, _Finding]] = {}  # by rule, then what it is about
        self._to_raise: Alert | None = None
        self._heard: dict[int, Mapping[str, float]] = {}  # the scalars that records had, by step
        self._said: dict[int, int] = {}  # the worst level warned of, by incident
        self._new: list[int] = []  # incidents that `begun` is to be called with

    def __repr__(self) -> str:
        return f"Monitor({', '.join(rule.name for rule in self._rules)})"

    @property
    def has_rules(self) -> bool:
        """Whether there are any rules."""
        return bool(self._rules)

    @property
    def incidents(self) -> Incidents:
        """The alerts so far by their causes."""
        return self._grouping.incidents()

    @property
    def may_raise(self) -> bool:
        """Whether a rule has the action "raise"."""
        return any(rule.action == "raise" for rule in self._rules)

    def __call__(self, record: StepRecord) -> None:
        """Check a step, and act on the alerts."""
        self._act(self._checked("records", partial(self._examine, record)))

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Check the scalars of a step that its record did not have, and act on the alerts."""
        known = self._heard.pop(step, {})
        self._heard = {other: had for other, had in self._heard.items() if other > step}
        values = {name: value for name, value in values.items() if name not in known}
        if values:
            self._act(self._checked("scalars", partial(self._examine_scalars, step, values)))

    def write_unclosed(self, step: int, values: Mapping[str, float]) -> None:
        """Check the scalars of an iteration that closed no step, and act on the alerts."""
        self._act(self._checked("scalars", partial(self._examine_scalars, step, values)))

    def write_fact(self, step: int, fact: Fact) -> None:
        """Check what is seen of the training without reading a tensor, and act on the alerts."""
        self._act(self._checked("facts", partial(self._examine_fact, step, fact)))

    def examine(self, record: StepRecord) -> list[Alert]:
        """The alerts of the next step, with its scalars, which are added to `alerts`; no action is
        taken."""
        given = self._checked("records", partial(self._examine, record))
        return [alert for _, alerts in given for alert, _ in alerts]

    def examine_scalars(self, step: int, values: Mapping[str, float]) -> list[Alert]:
        """The alerts about the scalars of a step, in the same way."""
        given = self._checked("scalars", partial(self._examine_scalars, step, values))
        return [alert for _, alerts in given for alert, _ in alerts]

    def notify(self, alert: Alert) -> None:
        """Keep an alert that is of no rule; no action is taken."""
        self.alerts.append(alert)
        self.keep([AlertEntry(alert, *self._grouping.add(alert), None)])

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
                    helps = alerts[0][0].advice or rule.advice
                    helps = f"; what helps: {helps}" if helps else ""
                    is_error = alerts[0][0].severity == "error"
                    category = SevereWarning if is_error else RuleWarning
                    warn(_together([alert for alert, _ in alerts]) + helps, category)

    def _took(self, rule: Rule, alerts: Sequence[tuple[Alert, bool]]) -> bool:
        """Whether a rule's own action took its alerts."""

        def act() -> bool:
            for alert, _ in alerts:
                assert callable(rule.action)
                self.perform(rule, partial(rule.action, alert))
            return True

        what, outcome = f"the action of rule {rule.name!r}", "its alerts are warned of instead"
        return bool(self._retries.tried((id(rule), "action"), what, outcome, act))

    @np.errstate(all="ignore")
    def _checked(self, part: str, action: Callable[[], _Given]) -> _Given:
        """What a part of the checks gives; nothing where it fails beside the rules themselves."""
        key = None, part
        given = self._retries.tried(key, "checking steps", "rules are disabled", action)
        if self._retries.is_ended(key):
            self._rules = []
        return given or []

    def _is_due(self, record: StepRecord) -> bool:
        """Whether to look at the tensors of a record."""
        is_bad = bool(record.tensors.tallies[[NAN, POSINF, NEGINF]].any())
        self._bad_steps = self._bad_steps + 1 if is_bad else 0
        now = time.monotonic()
        few = self._history.pushed < FIRST or 0 < self._bad_steps <= 4
        if not few and now - self._looked < self._interval:
            return False
        self._looked = now
        return True

    def _examine(self, record: StepRecord) -> _Given:
        """What the rules give of a record, with its scalars."""
        values = dict(record.scalars)
        self._heard[record.step] = values
        self._history.push_scalars(values)
        self._history.push_batch(record)
        if not self._rules or not self._is_due(record):
            return self._scalars_checked(record.step, values)
        self._history.push(record)

        def look(rule: Rule) -> list[Alert]:
            found = list(rule.check(record, self._history))
            self.urgent += rule.suspects(record, self._history)
            return [*found, *rule.check_scalars(record.step, values, self._history)]

        def shows(rule: Rule, key: Any) -> bool:
            return rule.scope != "site" or key in record or _is_of(key, values)

        return self._check(look, record.step, shows, self._rules)

    def _examine_scalars(self, step: int, values: Mapping[str, float]) -> _Given:
        """What the rules give of scalars that come without their record."""
        self._history.push_scalars(values)
        return self._scalars_checked(step, values)

    def _scalars_checked(self, step: int, values: Mapping[str, float]) -> _Given:
        if not values:
            return []

        def look(rule: Rule) -> list[Alert]:
            return list(rule.check_scalars(step, values, self._history))

        def shows(rule: Rule, key: Any) -> bool:
            return _is_of(key, values)

        # Others have nothing to say of most steps.
        rules = [r for r in self._rules if type(r).check_scalars is not Rule.check_scalars]
        return self._check(look, step, shows, rules)

    def _examine_fact(self, step: int, fact: Fact) -> _Given:
        self._history.push_fact(fact)

        def look(rule: Rule) -> list[Alert]:
            return list(rule.check_fact(step, fact, self._history))

        return self._check(look, step, lambda rule, key: False, self._rules, is_sure=True)

    def _called(self, rule: Rule, look: Callable[[Rule], list[Alert]]) -> list[Alert] | None:
        """What a rule finds; None where it fails, or is left out after it failed."""

        call = partial(look, rule)
        if not type(rule).__module__.startswith("hookstats."):
            call = partial(self.perform, rule, np.errstate(all="ignore")(call))
        what, outcome = f"rule {rule.name!r}", "the rule is disabled"
        found = self._retries.tried(id(rule), what, outcome, call)
        if found is None and self._retries.is_ended(id(rule)):
            self._rules = [other for other in self._rules if other is not rule]
        return found

    def _check(
        self,
        look: Callable[[Rule], list[Alert]],
        step: int,
        shows: Callable[[Rule, Any], bool],
        rules: Sequence[Rule],
        is_sure: bool = False,
    ) -> _Given:
        """What rules find in a step, beyond what they reported before."""
        given: _Given = []
        entries: list[AlertEntry] = []
        for rule in list(rules):
            found = self._called(rule, look)
            alerts = [] if found is None else self._begun(rule, found, step, shows, is_sure)
            if not alerts:
                continue
            self.alerts += alerts
            new = []
            for alert in alerts:
                number, is_cause = self._grouping.add(alert)
                entries.append(AlertEntry(alert, number, is_cause, thresholds(rule)))
                new.append((alert, self._is_news(alert, number)))
                # Of an old incident, too: what it does to the training now is to be seen.
                of_number = alert.kind == SCALAR
                of_loss = of_number and is_loss(alert.site)
                self.urgent += of_loss or alert.level > (not of_number)
            given.append((rule, new))
        if entries:
            self.keep(entries)
        while self._new:
            self.begun(self._advised(self._grouping.incident(self._new.pop(0))))
        return given

    def _advised(self, incident: Incident) -> Incident:
        """The incident, whose cause has the advice of its rule where it has none."""
        cause = incident.cause
        advice = next((rule.advice for rule in self._rules if rule.name == cause.rule), "")
        return replace(incident, cause=replace(cause, advice=cause.advice or advice))

    def _is_news(self, alert: Alert, incident: int) -> bool:
        """Whether to warn of an alert: of causes, and of consequences that are worse."""
        before = self._said.get(incident, 0)
        self._said[incident] = max(before, alert.level)
        if alert.level > before == 0:
            self._new.append(incident)
        return alert.level > before

    def _begun(
        self,
        rule: Rule,
        found: Sequence[Alert],
        step: int,
        shows: Callable[[Rule, Any], bool],
        is_sure: bool,
    ) -> list[Alert]:
        """The findings that were not reported yet; is_sure: without patience."""
        findings = self._findings.setdefault(id(rule), {})
        if not found and not findings:
            return []
        now: dict[Hashable, Alert] = {}
        for alert in found:
            now.setdefault(_key(rule, alert), alert)
        for key, finding in findings.items():
            if (finding.open or finding.streak) and key not in now and shows(rule, key):
                finding.streak, finding.open = 0, False
        alerts = []
        for key, alert in now.items():
            finding = findings.setdefault(key, _Finding())
            finding.streak += 1
            if finding.streak == 1:
                finding.began = alert.step
            # Before the last alert: the training went back to a checkpoint.
            waited = finding.told is None or not 0 <= step - finding.told < rule.every
            is_worse = alert.level > finding.level
            if (is_sure or finding.streak >= rule.patience) and (
                is_worse or (waited and not finding.open)
            ):
                finding.told, finding.open, finding.level = step, True, alert.level
                alerts.append(alert.lasting(finding.began))
        return alerts


_Given = list[tuple[Rule, list[tuple[Alert, bool]]]]
"""Per rule the alerts that it gave in a step, each with whether to warn of it."""


def _is_of(key: Any, values: Iterable[str]) -> bool:
    """Whether a finding is about one of these scalars."""
    return isinstance(key, tuple) and key[1] == SCALAR and key[0] in values


def thresholds(rule: Rule) -> dict[str, Any]:
    """The thresholds of a rule by name, without its action."""
    named = {field.name: getattr(rule, field.name) for field in fields(rule)}
    return {name: value for name, value in named.items() if name != "action"}


@dataclass
class _Finding:
    streak: int = 0
    """The number of looks in a row that had the finding."""
    began: int = 0
    """The step of the first of these."""
    open: bool = False
    """Whether the finding was reported since it last began."""
    told: int | None = None
    """The step of the last alert."""
    level: int = -1
    """How bad that was."""


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
