"""Alert: what a rule found in a step; Incident: one cause, and the alerts that followed from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hookstats.records.display import view_of
from hookstats.records.keys import plain_kind

Severity = Literal["note", "warning", "error"]
"""A note is no harm yet, a warning costs training something, an error most of it."""

SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""In order."""

SCALAR = "scalar"
"""The kind of alerts about a number of the training, such as its loss; the site is its name."""

REACH = 32
"""For how many steps after its last alert an incident is taken for the cause of what begins."""

_OF_SETTINGS = ("learning rate", "weight decay", "clipping", "loss graph")
"""Rules about numbers that the training was given, not about what became of it."""


@dataclass(frozen=True)
class Alert:
    """What a rule found in one tensor of one step.

    `site` and `kind` name the tensor as records do. `channel` is the channel that the alert is
    about, or the first of several; None if the alert is about the whole tensor. `value` is the
    number that went beyond the threshold; each rule says which number. `message` says all of this
    in one sentence. `rank` is the rank that found it; None for the whole model. An alert about a
    number that training logs has the number's name as `site` and the kind "scalar". `since` is the
    step since which it is so, `step` the one in which it was sure. `advice` is what usually helps,
    where that is another thing than the advice of the rule.
    """

    step: int
    rank: int | None
    site: str
    kind: str
    channel: int | None
    rule: str
    value: float
    message: str
    severity: Severity
    since: int = -1
    advice: str = ""

    def __post_init__(self) -> None:
        if self.since < 0:
            object.__setattr__(self, "since", self.step)

    def lasting(self, since: int) -> Alert:
        """The alert as one of what began in an earlier step, unless it says so already."""
        if since >= self.step or self.since < self.step:
            return self
        at = f"step {self.step}"
        message = self.message.replace(at, f"{at}, since step {since}", 1)
        return replace(self, since=since, message=message)

    @property
    def level(self) -> int:
        """How bad it is: 0 for a note, 1 for a warning, 2 for an error."""
        return SEVERITIES.index(self.severity)


@dataclass(frozen=True)
class Incident:
    """A cause, and its consequences in the order in which they were found.

    An alert is a consequence of the incident before it if that had an alert in the 32 steps before
    `Alert.since`, unless the cause is a note or about a number, such as the loss, and the alert is
    worse; but a learning rate that jumps causes what is worse, too. Notes of one rule are one
    incident. Nothing in a model causes what is in its own inputs. What a rule says of a tensor on
    several ranks counts once, as of the rank where it was found first.
    """

    cause: Alert
    consequences: tuple[Alert, ...] = ()
    read: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Reads `batch`."""

    @property
    def batch(self) -> Any:
        """What the calls of the model got in its step, a `runs.batches.Batch`; None where nothing
        is kept, see `Watch.keep_batches`. Each access reads the file.

        Raises:
            ValueError: the file is damaged; the message names it.
        """
        return None if self.read is None else self.read()

    @property
    def step(self) -> int:
        """The step of the cause."""
        return self.cause.step

    @property
    def message(self) -> str:
        """What the cause says, and how much followed from it."""
        return str(self)

    @property
    def severity(self) -> Severity:
        """The worst of all its alerts."""
        return max(self.alerts, key=lambda alert: alert.level).severity

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The cause and the consequences."""
        return (self.cause, *self.consequences)

    def __str__(self) -> str:
        n = len(self.consequences)
        if not n:
            return self.cause.message
        return f"{self.cause.message}; {n} {'consequence' if n == 1 else 'consequences'}"


class Incidents(tuple[Incident, ...]):
    """Incidents in the order in which they were found; a notebook shows them as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))


class Grouping:
    """Sorts alerts into incidents as they come."""

    def __init__(self) -> None:
        self._incidents: list[list[Alert]] = []
        self._last: list[int] = []  # step of the last alert of each

    def add(self, alert: Alert) -> tuple[int, bool]:
        """The number of the alert's incident, and whether the alert is its cause."""
        number = self._incident_of(alert)
        if number is None:
            self._incidents.append([alert])
            self._last.append(alert.step)
            return len(self._incidents) - 1, True
        self._incidents[number].append(alert)
        if alert.step <= self._last[number] + REACH:  # else it was found long after it began
            self._last[number] = max(self._last[number], alert.step)
        return number, False

    def _incident_of(self, alert: Alert) -> int | None:
        for number in range(len(self._incidents) - 1, -1, -1):
            cause = self._incidents[number][0]
            near = cause.since - REACH <= alert.since <= self._last[number] + REACH
            if near and _may_cause(cause, alert):
                return number
        return None

    def incident(self, number: int) -> Incident:
        """An incident as it is so far."""
        cause, *others = _once(self._incidents[number])
        return Incident(cause, tuple(others))

    def incidents(self) -> Incidents:
        """All incidents so far, by the steps of their causes."""
        told = map(_once, self._incidents)
        found = [Incident(cause, tuple(others)) for cause, *others in told]
        return Incidents(sorted(found, key=lambda incident: incident.step))


def _once(alerts: Iterable[Alert]) -> list[Alert]:
    """The alerts of an incident, without repetitions of another rank's."""
    first: dict[tuple[str, str, str], int | None] = {}
    return [
        alert
        for alert in alerts
        if first.setdefault((alert.rule, alert.site, alert.kind), alert.rank) == alert.rank
    ]


def _may_cause(cause: Alert, alert: Alert) -> bool:
    if _is_given(alert):
        return _is_given(cause)
    if cause.severity == "note":
        return alert.severity == "note" and cause.rule == alert.rule
    if cause.kind != SCALAR or cause.rule in _OF_SETTINGS:
        return True
    # In a step, numbers follow from tensors.
    is_earlier = alert.kind != SCALAR and alert.step <= cause.step
    return alert.level <= cause.level and not is_earlier


def _is_given(alert: Alert) -> bool:
    """Whether an alert is about an input of the model, of any name."""
    return alert.site == "" and plain_kind(alert.kind) == "input"


def incidents_of(alerts: Iterable[Alert]) -> Incidents:
    """The incidents of alerts in the order in which they were found."""
    grouping = Grouping()
    for alert in alerts:
        grouping.add(alert)
    return grouping.incidents()


def of_ranks(found: Iterable[Sequence[Alert]]) -> list[Alert]:
    """The alerts of several ranks by step; in a step, those of the rank first that has the earliest
    tensor on the way from inputs to gradients: other ranks get what is wrong with their gradients.

    Those of the whole model, which every rank has found that merges while it trains, count once.

    found: the alerts of each rank, whose order in a step stays.
    """
    groups: dict[tuple[int, int], list[Alert]] = {}
    seen: set[tuple[int, str]] = set()
    for rank, alerts in enumerate(found):
        for alert in alerts:
            if alert.rank is None:
                if (alert.step, alert.message) in seen:
                    continue
                seen.add((alert.step, alert.message))
            groups.setdefault((alert.step, rank), []).append(alert)
    stages = {key: min(map(_stage, alerts)) for key, alerts in groups.items()}
    ordered = sorted(groups, key=lambda key: (key[0], stages[key], key[1]))
    return [alert for key in ordered for alert in groups[key]]


def _stage(alert: Alert) -> int:
    """When in a step its tensor comes; notes, and numbers that training logs, say nothing of it."""
    if alert.kind == SCALAR or not alert.level:
        return len(_STAGES)
    return _STAGES.get(plain_kind(alert.kind), len(_STAGES))


_STAGES = {
    kind: stage
    for stage, kind in enumerate(
        ("param", "input", "output", "grad_output", "grad_input", "param_grad", "update")
    )
}


def samples_of(alert: Alert, samples: Mapping[int, Sequence[int | str]]) -> str:
    """Which samples the step had in which an alert began, in words; "" where nobody said.

    samples: the ids of each step's, see `Watch.log_batch`.
    """
    ids = [*map(str, samples.get(alert.since, ()))]
    if len(ids) > _SAMPLES:
        ids[_SAMPLES - 1 :] = ["..."]
    return f"samples of step {alert.since}: {', '.join(ids)}" if ids else ""


_SAMPLES = 16
"""How many ids of samples an incident shows."""


def worst(incidents: Sequence[Incident]) -> list[Incident]:
    """Incidents with the worst first, and of equal ones the earliest."""
    return sorted(incidents, key=lambda one: (-SEVERITIES.index(one.severity), one.step))


def count_by_severity(incidents: Iterable[Incident]) -> str:
    """ "1 error, 2 notes", the worst first; "no incidents"."""
    found = Counter(incident.severity for incident in incidents)
    numbers = ((found[severity], severity) for severity in reversed(SEVERITIES) if found[severity])
    words = [f"{number:,} {severity}{'s' * (number > 1)}" for number, severity in numbers]
    return ", ".join(words) or "no incidents"
