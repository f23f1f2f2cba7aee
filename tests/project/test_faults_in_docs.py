"""What the pages of alerts and symptoms show is said in runs of the corpus of planted faults."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from support.commands import call
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.faults.__main__ import main
from bench.faults.cases import Outcome, run_case
from bench.faults.fault import LATE, Fault
from bench.faults.faults import FAULTS
from hookstats.rules import default_rules
from hookstats.runs.run import open_run

PAGES = {
    page: (ROOT / "docs" / page).read_text("utf-8")
    for page in ("alerts.md", "symptoms.md", "zh/alerts.md")
}
SAID = re.findall(r"^\| (([a-z0-9 -]+): step \d+: .*) \| `(\w+/\S+)` \|$", PAGES["alerts.md"], re.M)
"""Of each row of examples: the sentence, the rule, the fault."""
SHOWN = [
    (page, *shown)
    for page, text in PAGES.items()
    for shown in re.findall(r"bench\.faults --show (\w+/\S+)`[^`]*```text\n(.*?)```", text, re.S)
]
SYMPTOMS = re.findall(
    r"^\| (the loss .*?|steps .*?|one .*?) \| (.*?) \| (`.*?) \| `(\S+)`: `(.*?)` \|$",
    PAGES["symptoms.md"],
    re.M,
)
"""Of each symptom: what is seen, where to look, the rules, the fault, the rule that it shows."""
NO_RUN = "fp8 risk"

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


def test_every_rule_has_a_run_or_the_page_names_its_test() -> None:
    rules = [rule.name for rule in default_rules() if rule.name != NO_RUN]
    assert sorted(rule for _, rule, _ in SAID) == sorted(rules)
    (file, test), *others = re.findall(r"`(rules/test_\w+\.py)::(test_\w+)`", PAGES["alerts.md"])
    assert f"has `{NO_RUN}` speak" in PAGES["alerts.md"]
    assert not others
    assert f'"{NO_RUN}"' in (ROOT / "tests" / file).read_text("utf-8").partition(f"{test}(")[2]


def test_every_symptom_has_a_run_that_one_of_its_rules_is_for() -> None:
    rows = [line for line in PAGES["symptoms.md"].splitlines() if line.startswith("| ")]
    assert len(SYMPTOMS) == len(rows) - 1  # without its head
    assert {seen for seen, *_ in SYMPTOMS} == SEEN.keys()
    for seen, _, rules, _, rule in SYMPTOMS:
        assert f"`{rule}`" in rules, seen


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


def before(losses: list[float]) -> float:
    """The greatest of the last losses before faults come in the middle of a run."""
    return max(losses[LATE - 10 : LATE])


def is_worse(name: str) -> bool:
    sound = run_case(of(name).base, None, seed=0)
    return fmean(outcome(name).losses[-10:]) > 1.2 * fmean(sound.losses[-10:])


def has_still_layer(name: str) -> bool:
    """Whether some weight gets no gradient in any step, and others do."""
    rows = [
        [step[key] for step in outcome(name).sizes]
        for key in outcome(name).sizes[0]
        if key[1] == "param_grad"
    ]
    return any(max(row) == 0 for row in rows) and any(min(row) > 0 for row in rows)


SEEN: dict[str, Callable[[str, list[float]], bool]] = {
    "the loss is NaN or infinite": lambda name, loss: not math.isfinite(loss[-1]),
    "the loss is flat from the start": lambda name, loss: (
        max(map(abs, (x - loss[0] for x in loss))) < 0.02 * loss[0]
    ),
    "the loss stays at the logarithm of the number of classes": lambda name, loss: (
        max(abs(x - math.log(10)) for x in loss) < 0.1
    ),
    "the loss leaps once": lambda name, loss: (
        loss[LATE] > 2 * before(loss) > 2 * max(loss[LATE + 1 :])
    ),
    "the loss leaps and stays high": lambda name, loss: min(loss[LATE + 1 :]) > 2 * before(loss),
    "the loss climbs": lambda name, loss: fmean(loss[-10:]) > 1.5 * fmean(loss[:10]),
    "the loss falls to zero at once": lambda name, loss: max(loss[20:]) < 1e-3,
    "the loss is worse than expected": lambda name, loss: is_worse(name),
    "steps are skipped with fp16": lambda name, loss: len(outcome(name).sizes) < len(loss),
    "one layer learns nothing": lambda name, loss: has_still_layer(name),
}
"""How a symptom shows in a run; of the fault's name, and of its losses."""


@pytest.mark.parametrize(("seen", "look", "rules", "name", "rule"), SYMPTOMS)
def test_a_run_has_the_symptom_and_the_view_shows_it(
    seen: str, look: str, rules: str, name: str, rule: str, tmp_path: Path
) -> None:
    fault = of(name)
    assert SEEN[seen](name, outcome(name).losses)
    run_case(fault.base, fault, seed=0, out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    alert = next(alert for alert in run.alerts if alert.rule == rule)
    for view in re.findall(r"`(run[.\[].*?)`", look):
        assert len(eval(view, {"run": run, "step": alert.step})) > 0, view
    printed = call("show", tmp_path / "run").out
    assert str(run.incidents[0]) in printed
    assert alert in run.incidents[0].alerts
