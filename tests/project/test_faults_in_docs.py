"""What the pages of rules and symptoms show is said in runs of the corpus of planted faults."""

from __future__ import annotations

import math
import re
import sys
from functools import cache

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.faults.__main__ import main
from bench.faults.cases import Outcome, run_case
from bench.faults.fault import Fault
from bench.faults.faults import FAULTS
from hookstats.rules import default_rules

PAGES = {
    page: (ROOT / "docs" / page).read_text("utf-8")
    for page in ("alerts.md", "rules-evidence.md", "symptoms.md", "zh/alerts.md")
}
SAID = re.findall(
    r"^\| (([a-z0-9 -]+): step \d+(?:, since step \d+)?: .*) \| `(\w+/\S+)` \|$",
    PAGES["rules-evidence.md"],
    re.M,
)
"""Of each row of examples: the sentence, the rule, the fault."""
SHOWN = [
    (page, *shown)
    for page, text in PAGES.items()
    for shown in re.findall(r"bench\.faults --show (\w+/\S+)`[^`]*```text\n(.*?)```", text, re.S)
]

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]  # scikit-learn is there


def of(name: str) -> Fault:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    return fault


@cache
def outcome(name: str) -> Outcome:
    fault = of(name)
    return run_case(fault.base, fault, seed=0)


NUMBER = re.compile(r"(?<![\w'.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
EXACT = re.compile(r"'[^']*'|step \d+")
PLACE = re.compile(r"(channel|row) \d+")
"""Which of many was the greatest by a little."""


def check(said: str, shown: str) -> None:
    """The same words, layers and steps; numbers that training ends up at may be others."""
    said, shown = (PLACE.sub(r"\1 #", text.strip()) for text in (said, shown))
    assert EXACT.findall(said) == EXACT.findall(shown), said
    assert NUMBER.sub("#", said) == NUMBER.sub("#", shown), said
    for ours, theirs in zip(NUMBER.findall(said), NUMBER.findall(shown), strict=True):
        assert math.isclose(float(ours), float(theirs), rel_tol=0.5), said


def test_every_rule_has_a_run() -> None:
    assert sorted(rule for _, rule, _ in SAID) == sorted(rule.name for rule in default_rules())


@pytest.mark.parametrize(
    ("sentence", "rule", "fault"),
    [pytest.param(*each, id=each[1]) for each in SAID],
)
def test_a_rule_says_it_of_the_run(sentence: str, rule: str, fault: str) -> None:
    said = next(alert.message for alert in outcome(fault).alerts if alert.rule == rule)
    check(said, sentence)


@pytest.mark.parametrize(
    ("page", "fault", "shown"),
    [pytest.param(*each, id="-".join(each[:2])) for each in SHOWN],
)
def test_the_incidents_of_a_run_are_those_of_the_page(
    page: str,
    fault: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.faults", "--show", fault])
    assert main() == 0
    check(capsys.readouterr().out, shown)


def test_a_mistyped_fault_is_answered_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.faults", "--show", "data/scaled-bach"])
    with pytest.raises(SystemExit):
        main()
    assert "did you mean 'data/scaled-batch'?" in capsys.readouterr().err
