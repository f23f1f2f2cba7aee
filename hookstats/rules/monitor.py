"""Monitor: checks every step by rules, and acts on their alerts; replay() does so for a run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord
from hookstats.rules.channels import DeadChannels, Saturation
from hookstats.rules.history import History
from hookstats.rules.rule import Alert, Rule, RuleError, RuleWarning
from hookstats.rules.tensors import Exploding, FP8Risk, NonFinite, SuddenShift, Vanishing
from hookstats.runs.run import Run
from hookstats.stats.warning import warn

_NAMED = 3  # tensors, of several with an alert in one step


def default_rules() -> tuple[Rule, ...]:
    """All rules, with their own thresholds; their action is to warn."""
    return (
        NonFinite(),
        Exploding(),
        Vanishing(),
        DeadChannels(),
        Saturation(),
        SuddenShift(),
        FP8Risk(),
    )


def replay(run: Run, rules: str | Sequence[Rule] = "default") -> list[Alert]:
    """The alerts that the rules would have given, had they seen what the run has.

    In a run of several ranks these see the whole model; in ``run.of_rank(r)`` what the rank saw.
    No action is taken. A rule that fails is disabled, with a warning.

    Raises:
        ValueError: rules is neither "default" nor a sequence of Rule.
    """
    monitor = Monitor(rules)
    for step in run.steps:
        monitor.examine(run[step])
    return monitor.alerts


class Monitor:
    """A sink that reports alerts: each finding once, as `Rule` says.

    A rule that fails, or whose action fails, is disabled with one RuntimeWarning; the other rules
    go on.

    Raises:
        ValueError: rules is neither "default" nor a sequence of Rule.
    """

    def __init__(self, rules: str | Sequence[Rule] = "default") -> None:
        chosen = default_rules() if rules == "default" else rules
        if not (isinstance(chosen, Sequence) and all(isinstance(rule, Rule) for rule in chosen)):
            raise ValueError(
                f'rules = {rules!r}: expected "default" or a sequence of Rule{_meant(rules)}'
            )
        self.alerts: list[Alert] = []
        """All alerts so far."""
        self.failures: dict[str, str] = {}
        """The rules that failed, with the error of each."""
        self._rules = [rule for rule in chosen if isinstance(rule, Rule)]
        self._history = History()
        self._findings: dict[tuple[int, Hashable], _Finding] = {}
        self._to_raise: Alert | None = None

    def __repr__(self) -> str:
        return f"Monitor({', '.join(rule.name for rule in self._rules)})"

    def __call__(self, record: StepRecord) -> None:
        """Check a step, and act on the alerts."""
        for rule, alerts in self._examine(record):
            if rule.action == "raise":
                self._to_raise = self._to_raise or alerts[0]
            elif rule.action == "warn":
                warn(_together(alerts), RuleWarning)
            else:
                try:
                    for alert in alerts:
                        rule.action(alert)
                except Exception as error:
                    self._disable(rule, error)

    def examine(self, record: StepRecord) -> list[Alert]:
        """The alerts of the next step, which are added to `alerts`; no action is taken."""
        return [alert for _, alerts in self._examine(record) for alert in alerts]

    def raise_pending(self) -> None:
        """Raise the first alert of a rule with the action "raise", once."""
        alert, self._to_raise = self._to_raise, None
        if alert is not None:
            raise RuleError(alert)

    def _examine(self, record: StepRecord) -> list[tuple[Rule, list[Alert]]]:
        self._history.push(record)
        given: list[tuple[Rule, list[Alert]]] = []
        for rule in self._rules.copy():
            try:
                found = list(rule.check(record, self._history))
            except Exception as error:
                self._disable(rule, error)
                continue
            alerts = self._begun(rule, found, record)
            if alerts:
                given.append((rule, alerts))
                self.alerts += alerts
        return given

    def _begun(self, rule: Rule, found: Sequence[Alert], record: StepRecord) -> list[Alert]:
        """The findings that were not reported yet."""
        now = {(id(rule), _key(rule, alert)): alert for alert in reversed(found)}
        for key, finding in self._findings.items():
            if key[0] == id(rule) and key not in now and _may_show(rule, key[1], record):
                finding.streak, finding.open = 0, False
        alerts = []
        for alert in found:
            key = id(rule), _key(rule, alert)
            if now.get(key) is not alert:
                continue
            finding = self._findings.setdefault(key, _Finding())
            finding.streak += 1
            # Before the last alert: the training went back to a checkpoint.
            waited = finding.told is None or not 0 <= record.step - finding.told < rule.every
            if finding.streak >= rule.patience and waited and not finding.open:
                finding.told, finding.open = record.step, True
                alerts.append(alert)
        return alerts

    def _disable(self, rule: Rule, error: Exception) -> None:
        self._rules.remove(rule)
        self.failures[f"rule {rule.name!r}"] = why = f"{type(error).__name__}: {error}"
        warn(f"hookstats: rule {rule.name!r} failed: {why}; the rule is disabled")


def _meant(rules: object) -> str:
    """What was probably meant by `rules`, which are none; "" where nobody knows."""
    if rules is True or rules == "all":
        return '; did you mean rules="default", which are all rules?'
    several = rules if isinstance(rules, Sequence) else [rules]
    for rule in several:
        if isinstance(rule, type) and issubclass(rule, Rule):
            return f"; {rule.__name__} is a class: did you mean [{rule.__name__}()]?"
    return "; did you mean it in a list?" if isinstance(rules, Rule) else ""


@dataclass
class _Finding:
    streak: int = 0
    """The number of steps in a row that had the finding."""
    open: bool = False
    """Whether the finding was reported since it last began."""
    told: int | None = None
    """The step of the last alert."""


def _key(rule: Rule, alert: Alert) -> Hashable:
    """The key that two alerts of a rule share if they are about one finding."""
    if rule.scope == "site":
        return alert.site, alert.kind
    return plain_kind(alert.kind) if rule.scope == "kind" else None


def _may_show(rule: Rule, key: Any, record: StepRecord) -> bool:
    """Whether the step could have had the finding again."""
    return rule.scope != "site" or key in record


def _together(alerts: Sequence[Alert]) -> str:
    """One message of all alerts of a rule in a step."""
    first, *others = alerts
    if not others:
        return first.message
    named = ", ".join(f"{a.kind} of {a.site!r}" for a in others[:_NAMED])
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{first.message} (also {named}{more})"
