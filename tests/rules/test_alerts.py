"""When alerts are given, what is done with them, how a watch gives them, and their causes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.alerts import alerts
from support.modules import take_step
from support.samples import record_of
from torch import Tensor, nn

from hookstats.records.alerts import REACH, SCALAR, incidents_of
from hookstats.records.record import StepRecord
from hookstats.rules import (
    Alert,
    Exploding,
    History,
    Monitor,
    NonFinite,
    Rule,
    RuleError,
    RuleWarning,
    replay,
)
from hookstats.rules.rates import LearningRate, WeightDecay
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch


@dataclass(frozen=True, kw_only=True)
class Listed(Rule):
    """Finds the sites whose mean is 1."""

    name = "listed"

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        for site in (history.tensors.mean == 1).nonzero().flatten().tolist():
            yield self.alert(record, site, "is one", 1.0)


def told(rule: Rule, pattern: str) -> list[int]:
    """The steps of alerts where "x" is a step with the finding, "." without, "-" not observed."""
    steps = [
        {("a", "output"): torch.full((2, 2), float(c == "x"))} if c != "-" else {} for c in pattern
    ]
    return [alert.step for alert in alerts(rule, steps)]


def test_what_stays_is_told_once() -> None:
    assert told(Listed(), "..xxxxxxx" + 200 * "x") == [2]
    assert told(Listed(), "x" + 120 * "-" + "x") == [0]  # nobody saw it go away


def test_what_comes_back_is_told_again_after_a_while() -> None:
    assert told(Listed(every=10), "x.x.x.......xx.") == [0, 12]
    assert told(Listed(every=4), "x.xxxx") == [0, 4]
    assert told(Listed(every=1), "x.x.xx") == [0, 2, 4]


def test_patience_is_of_steps_in_a_row() -> None:
    assert told(Listed(patience=3), "xx.xx.xxx") == [8]
    assert told(Listed(patience=3), "x-x--xx") == [5]
    assert told(Listed(patience=3, every=1), "xxxx.xxxx") == [2, 7]


def test_each_site_has_findings_of_its_own() -> None:
    one, zero = torch.ones(2, 2), torch.zeros(2, 2)
    steps = [
        {("a", "output"): one, ("b", "output"): zero},
        {("a", "output"): one, ("b", "output"): one, ("b", "grad_output"): one},
    ]
    assert [(a.step, a.site, a.kind) for a in alerts(Listed(), steps)] == [
        (0, "a", "output"),
        (1, "b", "output"),
        (1, "b", "grad_output"),
    ]


def test_a_training_that_goes_back_to_a_checkpoint_is_told_again() -> None:
    monitor = Monitor([Listed()])
    for step, value in ((50, 1.0), (51, 0.0), (10, 0.0), (11, 1.0)):
        monitor.examine(record_of({("a", "output"): (torch.full((2, 2), value), 1)}, step))
    assert [alert.step for alert in monitor.alerts] == [50, 11]


# Actions


def ones(n: int, step: int = 0) -> StepRecord:
    return record_of({(f"layer{i}", "output"): (torch.ones(2, 2), 1) for i in range(n)}, step)


def test_a_warning_is_one_a_step_and_rule() -> None:
    monitor = Monitor([Listed()])
    with pytest.warns(RuleWarning) as caught:
        monitor(ones(6))
    assert [str(w.message) for w in caught] == [
        "listed: step 0: output of 'layer0' is one "
        "(also output of 'layer1', output of 'layer2', output of 'layer3' and 2 more)"
    ]
    assert len(monitor.alerts) == 6
    monitor(ones(6, step=1))  # no news


def test_a_callable_gets_every_alert() -> None:
    got: list[Alert] = []
    monitor = Monitor([Listed(action=got.append)])
    monitor(ones(2))
    assert [alert.site for alert in got] == ["layer0", "layer1"]
    assert got == monitor.alerts


def test_an_error_is_kept_until_it_is_asked_for() -> None:
    monitor = Monitor([Listed(action="raise")])
    monitor.raise_pending()
    monitor(ones(2))
    with pytest.raises(RuleError, match="output of 'layer0' is one") as error:
        monitor.raise_pending()
    assert error.value.alert.site == "layer0"
    monitor.raise_pending()  # once


class Faulty(Listed):
    """Fails."""

    name = "faulty"

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        raise ArithmeticError("no")


def test_a_rule_that_fails_fails_alone() -> None:
    def fail(alert: Alert) -> None:
        raise OSError("mail server is down")

    got: list[Alert] = []
    monitor = Monitor([Faulty(), replace(Listed(), action=fail), Listed(action=got.append)])
    with pytest.warns(RuntimeWarning) as caught:
        list(map(monitor, [ones(1), ones(2, step=1)]))
    down = "OSError: mail server is down"
    assert [str(w.message) for w in caught] == [
        "hookstats: rule 'faulty' failed: ArithmeticError: no; it is called again at later steps",
        f"hookstats: the action of rule 'listed' failed: {down}; it is called again at later steps",
        "listed: step 0: output of 'layer0' is one",
        "listed: step 1: output of 'layer1' is one",
    ]
    assert [alert.site for alert in got] == ["layer0", "layer1"]
    assert monitor.failures == {
        "rule 'faulty'": "ArithmeticError: no; 2 calls missed",
        "the action of rule 'listed'": f"{down}; 2 calls missed",
    }


# With a watch


def steps(model: nn.Module, n: int, rules: str | Sequence[Rule], **kwargs: Any) -> Any:
    """Train for n steps; the watch, still open."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer, rules=rules, **kwargs)
    for _ in range(n):
        take_step(optimizer, model(torch.randn(8, 3)).square().mean())
    return w


def trained(model: nn.Module, n: int, rules: str | Sequence[Rule], **kwargs: Any) -> Any:
    """The same, closed."""
    w = steps(model, n, rules, **kwargs)
    w.close()
    return w


class Breaks(nn.Module):
    """Gives NaN in channel 1 from a call on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.left = call

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        return x if self.left >= 0 else torch.where(torch.arange(x.shape[-1]) == 1, torch.nan, x)


def broken_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), Breaks(2), nn.Linear(4, 2))


def test_a_watch_warns() -> None:
    with pytest.warns(RuleWarning, match="'1' has 8 NaN, first in .*; what helps: look at"):
        w = trained(broken_model(), 4, "default")
    assert [(a.rule, a.site, a.channel) for a in w.alerts] == [("non-finite", "1", 1)]
    assert w.coverage().failures == {}


@pytest.mark.parametrize(
    ("value", "rule", "severity"), [(1.0, Listed(), "warning"), (torch.nan, NonFinite(), "error")]
)
def test_an_alert_is_printed_with_its_severity(value: float, rule: Rule, severity: str) -> None:
    record = record_of({("a", "output"): (torch.full((2, 2), value), 1)})
    with pytest.warns(RuleWarning) as caught:
        Monitor([rule])(record)
    [found] = caught
    shown = warnings.formatwarning(found.message, found.category, found.filename, 1)
    assert shown.startswith(f"hookstats: {severity}: {rule.name}: step 0")


@pytest.mark.filterwarnings("error::hookstats.rules.rule.RuleWarning")
def test_a_watch_logs_where_a_warning_would_be_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), steps(broken_model(), 4, [NonFinite()]) as w:
        pass
    assert len(w.alerts) == 1
    assert "non-finite: step 2: output of '1'" in caplog.text
    assert w.coverage().failures == {}


def test_a_watch_raises_when_the_next_step_closes() -> None:
    model = broken_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer, rules=[NonFinite(action="raise")])

    def train(steps: range) -> None:
        for step in steps:
            take_step(optimizer, model(torch.randn(8, 3)).square().mean())
            assert w.latest.step == step  # the rules have seen it

    train(range(2))
    # In step 2 if the rules see it before the step is closed, else in the next.
    with pytest.raises(RuleError, match="non-finite: step 2: output of '1'"):
        train(range(2, 4))
    w.close()


def test_a_watch_raises_at_the_end_what_was_not_raised() -> None:
    w = steps(broken_model(), 3, [NonFinite(action="raise")])
    with pytest.raises(RuleError):
        w.close()
    w.close()
    with pytest.raises(RuleError), steps(broken_model(), 3, [NonFinite(action="raise")]):
        pass
    # The training's own error comes first.
    with pytest.raises(KeyError), steps(broken_model(), 3, [NonFinite(action="raise")]):
        raise KeyError


def test_replay_gives_the_alerts_of_a_stored_run(tmp_path: Path) -> None:
    with pytest.warns(RuleWarning):
        w = trained(broken_model(), 5, "default", out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert tuple(replay(run)) == w.alerts != ()
    assert replay(run, [Exploding()]) == []
    with pytest.raises(ValueError, match="rules = 'none'"):
        replay(run, "none")


WARNING = Alert(10, 0, "a", "output", None, "peers", 1.0, "peers: step 10: a", "warning")


def at(step: int, rule: str = "peers", severity: str = "warning") -> Alert:
    """An alert of a step."""
    return replace(WARNING, step=step, since=step, rule=rule, severity=severity)


def test_what_follows_soon_is_a_consequence() -> None:
    first, second, third = at(10), at(11, "exploding", "error"), at(11 + REACH, "vanishing")
    (one,) = incidents_of([first, second, third])
    assert (one.cause, one.consequences) == (first, (second, third))
    assert (one.step, one.severity) == (10, "error")
    assert str(one) == "peers: step 10: a; 2 consequences"


def test_what_comes_later_has_a_cause_of_its_own() -> None:
    first, later = at(10), at(11 + REACH)
    assert [one.cause for one in incidents_of([first, later])] == [first, later]


def test_a_note_causes_no_warning() -> None:
    note, warning = at(10, "dead channels", "note"), at(11)
    assert [one.cause for one in incidents_of([note, warning])] == [note, warning]
    again = at(12, "dead channels", "note")
    assert incidents_of([note, again])[0].consequences == (again,)
    other = at(12, "repeated inputs", "note")
    assert len(incidents_of([note, other])) == 2
    # Beside a warning, notes are its consequences.
    assert incidents_of([warning, other])[0].consequences == (other,)


def test_what_was_found_late_belongs_to_where_it_began() -> None:
    cause, other = at(10), at(250)
    flat = replace(WARNING, step=300, since=0, site="loss", kind=SCALAR, rule="loss")
    late = at(310)
    found = incidents_of([cause, other, flat, late])
    assert [one.alerts for one in found] == [(cause, flat), (other,), (late,)]


def test_in_a_step_tensors_come_before_numbers() -> None:
    bad = Alert(30, 0, "loss", SCALAR, None, "loss", 2.3, "the loss is NaN", "error")
    first = replace(bad, site="a", kind="output", rule="non-finite")
    assert [one.cause for one in incidents_of([bad, first])] == [bad, first]
    assert len(incidents_of([bad, replace(first, step=31)])) == 1


def test_training_that_goes_back_has_incidents_of_its_own() -> None:
    assert len(incidents_of([at(100), at(10)])) == 2


def test_what_cannot_be_the_cause_has_no_consequences() -> None:
    flat = Alert(29, 0, "loss", SCALAR, None, "loss", 2.3, "the loss does not fall", "warning")
    bad = Alert(30, 0, "", "input", 5, "non-finite", 1.0, "the input has a NaN", "error")
    after = Alert(31, 0, "0", "output", 5, "non-finite", 1.0, "an output has a NaN", "error")
    assert [len(one.alerts) for one in incidents_of([flat, bad, after])] == [1, 2]
    # No tensor that is worse either; but one that is not.
    assert [one.cause for one in incidents_of([flat, after])] == [flat, after]
    (one,) = incidents_of([flat, replace(after, severity="warning")])
    assert one.cause == flat
    # Inputs come before all else, but for what came before in them.
    grown = replace(after, step=28, severity="warning")
    assert [one.cause for one in incidents_of([grown, bad])] == [grown, bad]
    (one,) = incidents_of([bad, replace(bad, step=40)])
    assert one.cause == bad


@pytest.mark.parametrize("rule", [LearningRate, WeightDecay])
def test_a_setting_causes_what_is_worse(rule: type[Rule]) -> None:
    setting = Alert(60, 0, "lr/0", SCALAR, None, rule.name, 5.0, "lr/0 is bad", "warning")
    explodes = at(62, "exploding", "error")
    (one,) = incidents_of([setting, explodes])
    assert (one.cause, one.consequences, one.severity) == (setting, (explodes,), "error")
    bad = replace(explodes, site="", kind="input")
    assert [one.cause for one in incidents_of([setting, bad])] == [setting, bad]


def test_what_several_ranks_find_counts_once() -> None:
    first, later = at(10), at(12, "exploding", "error")
    elsewhere = [replace(one, rank=1) for one in (first, replace(later, step=13))]
    alone = replace(later, rank=1, site="b")
    (one,) = incidents_of([first, elsewhere[0], later, elsewhere[1], alone])
    assert one.alerts == (first, later, alone)
    # The same rank may say it again.
    (one,) = incidents_of([first, replace(first, step=20)])
    assert len(one.consequences) == 1
