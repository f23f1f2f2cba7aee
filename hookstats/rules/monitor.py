"""Monitor: checks every step by rules, and acts on their alerts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hookstats.records.alerts import SCALAR, Alert, Grouping, Incident
from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord
from hookstats.rules.attention import Attention
from hookstats.rules.beginnings import Initialisation, Untrained
from hookstats.rules.channels import DeadChannels, Dropout, Saturation
from hookstats.rules.half import LossScale, Underflow
from hookstats.rules.history import History
from hookstats.rules.inputs import Inputs, RepeatedInputs
from hookstats.rules.loss import Loss
from hookstats.rules.peers import Collapse, Depth, LinearRange, Peers
from hookstats.rules.rates import Clipping, LearningRate, Rounding, UpdateSize, WeightDecay
from hookstats.rules.rule import Rule, RuleError, RuleWarning
from hookstats.rules.setup import Setup
from hookstats.rules.steps import Steps, runs
from hookstats.rules.targets import Accumulation, Logits, Targets
from hookstats.rules.tensors import Exploding, FP8Risk, NonFinite, SuddenShift, Vanishing
from hookstats.runs.alerts import Told
from hookstats.stats.warning import warn

_NAMED = 3  # tensors, of several with an alert in one step

_DEFAULT: tuple[type[Rule], ...] = (
    Initialisation,
    Untrained,
    WeightDecay,
    LearningRate,
    Clipping,
    UpdateSize,
    Rounding,
    LossScale,
    Inputs,
    RepeatedInputs,
    NonFinite,
    Accumulation,
    Logits,
    Targets,
    Dropout,
    Attention,
    Saturation,
    Peers,
    Depth,
    LinearRange,
    Collapse,
    Exploding,
    SuddenShift,
    DeadChannels,
    Vanishing,
    Underflow,
    Loss,
    FP8Risk,
)
"""Causes before symptoms: of the findings in a step, the first is taken for the cause of others."""

Rules = str | bool | Rule | type[Rule] | Sequence[Rule | type[Rule]]
"""What stands for rules: "default", "all" or True; one or several, each a Rule or its class;
False or () for none."""


def default_rules() -> tuple[Rule, ...]:
    """All rules, with their own thresholds; their action is to warn."""
    return tuple(rule() for rule in _DEFAULT)


def advice_of(rule: str) -> str:
    """What usually helps against what a rule found, by the rule's name in alerts; "" if unknown."""
    return next((known.advice for known in _DEFAULT if known.name == rule), "")


def as_rules(rules: Any) -> tuple[Rule, ...]:
    """The rules that `rules` stands for, see `Rules`.

    Raises:
        ValueError: it stands for none; the message suggests what was meant.
    """
    if isinstance(rules, bool):
        return default_rules() if rules else ()
    if isinstance(rules, str):
        if rules in ("default", "all"):
            return default_rules()
        return (_named(rules, rules),)
    several = [rules] if isinstance(rules, (Rule, type)) else rules
    if not isinstance(several, Sequence):
        raise ValueError(f'rules = {rules!r}: expected "default", rules, or False for none')
    return tuple(_one(rule, rules) for rule in several)


def _one(rule: Any, rules: Any) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if isinstance(rule, str):
        return _named(rule, rules)
    raise ValueError(f'rules = {rules!r}: expected "default", or rules such as NonFinite()')


def _named(name: str, rules: Any) -> Rule:
    """A rule by its name in alerts or by that of its class."""
    known = {"default": None} | {r.name: r for r in _DEFAULT} | {r.__name__: r for r in _DEFAULT}
    found = known.get(name)
    if found is not None:
        return found()
    lower = {known_name.lower(): known_name for known_name in known}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    meant = f"; did you mean {lower[close[0]]!r}?" if close else ""
    raise ValueError(f'rules = {rules!r}: expected "default", or rules such as "loss"{meant}')


class Monitor:
    """A sink that reports alerts: each finding once, as `Rule` says.

    Of an incident (see `Incident`) it warns once, of the cause; and once more where a consequence
    is worse. Of notes it does not warn. A rule that fails, or whose action fails, is disabled with
    one RuntimeWarning; the other rules go on.

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
        """The rules that failed, with the error of each."""
        self.keep: Callable[[Sequence[Told]], object] = lambda told: None
        """Called with new alerts; a run directory keeps them."""
        self.urgent = 0
        """How many alerts call for a closer look: errors, and warnings about logged numbers."""
        self._rules = list(as_rules(rules))
        self._history = History(setup)
        self._grouping = Grouping()
        self._findings: dict[tuple[int, Hashable], _Finding] = {}
        self._live: set[int] = set()  # rules with findings that may end, by id
        self._of_scalars = {id(rule) for rule in self._rules if looks_at_scalars(rule)}
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
        seen = self._seen.pop(step, ())
        for earlier in [other for other in self._seen if other < step]:
            del self._seen[earlier]
        new = {name: value for name, value in values.items() if name not in seen}
        if new:
            self._act(self._examine_scalars(step, new))

    def write_unclosed(self, step: int, values: Mapping[str, float], iteration: int) -> None:
        """Check the scalars of an iteration that closed no step, and act on the alerts.

        iteration: how many of them the open step has so far.
        """
        self._history.unclosed = iteration
        self._act(self._examine_scalars(step, values))
        self._history.unclosed = 0

    def examine(self, record: StepRecord) -> list[Alert]:
        """The alerts of the next step, with its scalars, which are added to `alerts`; no action is
        taken."""
        given = [each for step in self._examine([record]) for each in step]
        return [alert for _, alerts in given for alert, _ in alerts]

    def examine_scalars(self, step: int, values: Mapping[str, float]) -> list[Alert]:
        """The alerts about the scalars of a step, in the same way."""
        return [a for _, alerts in self._examine_scalars(step, values) for a, _ in alerts]

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
            elif rule.action == "warn":
                alerts.sort(key=lambda each: not each[1])  # the news first
                if alerts[0][1]:
                    helps = f"; what helps: {rule.advice}" if rule.advice else ""
                    warn(_together([alert for alert, _ in alerts]) + helps, RuleWarning)
            else:
                try:
                    for alert, _ in alerts:
                        rule.action(alert)
                except Exception as error:
                    self._disable(rule, error)

    def _examine(self, records: Sequence[StepRecord]) -> Iterator[_Given]:
        """What the rules give, step by step."""
        for alike in runs(records):
            steps = self._history.extend(alike)
            suspects = self._suspects(steps)
            for i, record in enumerate(alike):
                self._history.show(i)
                yield self._examine_one(record, {rule for rule in suspects if suspects[rule][i]})

    def _suspects(self, steps: Steps) -> dict[int, list[bool]]:
        """By the rule's id, in which steps it may find something."""
        with np.errstate(all="ignore"):
            return {id(rule): self._suspects_of(rule, steps) for rule in self._rules.copy()}

    def _suspects_of(self, rule: Rule, steps: Steps) -> list[bool]:
        try:
            found: list[bool] = rule.suspects(steps).tolist()
        except Exception as error:
            self._disable(rule, error)
            return [False] * len(steps)
        return found

    def _examine_one(self, record: StepRecord, suspects: Collection[int]) -> _Given:
        values = dict(record.scalars)
        self._seen[record.step] = values.keys()
        self._history.push_scalars(values)

        def look(rule: Rule) -> Iterable[Alert]:
            if id(rule) in suspects:
                yield from rule.check(record, self._history)
            if id(rule) in self._of_scalars:
                yield from rule.check_scalars(record.step, values, self._history)

        def may_show(rule: Rule, key: Any) -> bool:
            return rule.scope != "site" or key in record or _is_of(key, values)

        return self._check(look, record.step, may_show, {*suspects, *self._of_scalars})

    def _examine_scalars(self, step: int, values: Mapping[str, float]) -> _Given:
        self._history.push_scalars(values)

        def may_show(rule: Rule, key: Any) -> bool:
            return _is_of(key, values)

        return self._check(
            lambda rule: rule.check_scalars(step, values, self._history),
            *(step, may_show, self._of_scalars),
        )

    def _check(
        self,
        look: Callable[[Rule], Iterable[Alert]],
        step: int,
        may_show: Callable[[Rule, Any], bool],
        looking: Collection[int],
    ) -> _Given:
        """What `looking` rules, by id, find in a step; of others, findings may end."""
        given: _Given = []
        told: list[Told] = []
        for rule in self._rules.copy():
            if (key := id(rule)) not in looking and key not in self._live:
                continue
            try:
                found = list(look(rule))
            except Exception as error:
                self._disable(rule, error)
                continue
            if not found and key not in self._live:
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
        self._live.discard(id(rule))
        now = {(id(rule), _key(rule, alert)): alert for alert in reversed(found)}
        for key, finding in self._findings.items():
            if key[0] == id(rule) and key not in now and may_show(rule, key[1]):
                finding.streak, finding.open = 0, False
            if key[0] == id(rule) and (finding.streak or finding.open):
                self._live.add(id(rule))
        alerts = []
        for alert in found:
            key = id(rule), _key(rule, alert)
            if now.get(key) is not alert:
                continue
            finding = self._findings.setdefault(key, _Finding())
            finding.streak += 1
            self._live.add(id(rule))
            # Before the last alert: the training went back to a checkpoint.
            waited = finding.told is None or not 0 <= step - finding.told < rule.every
            is_worse = alert.level > finding.level
            if finding.streak >= rule.patience and (is_worse or (waited and not finding.open)):
                finding.told, finding.open, finding.level = step, True, alert.level
                alerts.append(alert)
        return alerts

    def _disable(self, rule: Rule, error: Exception) -> None:
        self._rules.remove(rule)
        self.failures[f"rule {rule.name!r}"] = why = f"{type(error).__name__}: {error}"
        warn(f"hookstats: rule {rule.name!r} failed: {why}; the rule is disabled")


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
