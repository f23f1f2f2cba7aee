"""Alerts sorted by their causes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hookstats.records.alerts import REACH, SCALAR, Alert, incidents_of
from hookstats.rules.rates import LearningRate, WeightDecay
from hookstats.rules.rule import Rule

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
