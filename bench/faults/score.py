"""Scores what the rules said of a case, and prints the table of all cases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from typing import NamedTuple

from bench.faults.cases import Outcome
from bench.faults.fault import SHARES, Fault
from bench.faults.sound import Program
from hookstats.records.alerts import SEVERITIES, Alert

SOON = 3
"""How many steps after its first a fault has to be found."""
SOON_FROM_START = 30
"""The same of faults that are there from the start."""


class Score(NamedTuple):
    """How a fault was found."""

    fault: Fault
    seed: int
    counts: bool
    """Whether the fault changes anything that is recorded."""
    found: Alert | None
    first: bool
    """Whether the true one came before all other warnings and errors of the run."""
    before: int
    """How many of these came before it."""
    others: tuple[Alert, ...]
    """What was said, in order."""


def score(fault: Fault, seed: int, outcome: Outcome, counts: bool) -> Score:
    """Compare what was said with what is wrong."""
    last = fault.step + (SOON if fault.step else SOON_FROM_START) + fault.slow
    least = SEVERITIES.index(fault.severity)  # type: ignore[arg-type]
    grave = [a for a in outcome.alerts if SEVERITIES.index(a.severity) >= least]
    true = (i for i, a in enumerate(grave) if fault.step <= a.step <= last and names(fault, a))
    before = next(true, None)
    if before is None:
        return Score(fault, seed, counts, None, False, 0, outcome.alerts)
    return Score(fault, seed, counts, grave[before], not before, before, outcome.alerts)


def names(fault: Fault, alert: Alert) -> bool:
    """Whether an alert is about the fault: at its layer, or of a rule that means it."""
    if not fault.where:
        return alert.rule in fault.says
    owner = alert.site.rpartition(".")[0] if "param" in alert.kind else alert.site
    return alert.kind != "scalar" and any(fnmatch(owner, glob) for glob in fault.where)


def print_scores(scores: Sequence[Score], verbose: bool) -> None:
    """One line per case, and the shares that were found."""
    for one in scores:
        found = one.found
        what = f"step {found.step}: {found.message[:110]}" if found else "MISSED"
        counted = "" if one.counts else " (changes nothing recorded)"
        place = "" if one.first or not found else f" [after {one.before} others]"
        print(f"{one.fault.name:30} {one.seed} {one.fault.share:9} {what}{place}{counted}")
        if verbose and not one.first:
            for alert in one.others[:6]:
                print(f"      {alert.severity}: {alert.message[:150]}")


def print_shares(scores: Iterable[Score]) -> bool:
    """How many of each share were found; whether all shares reach what they must."""
    reached = True
    scores = [one for one in scores if one.counts]
    for name in SHARES:
        some = [one for one in scores if one.fault.share == name]
        found = [one for one in some if one.found]
        first = [one for one in found if one.first]
        if some:
            share, causes = len(found) / len(some), len(first) / max(len(found), 1)
            print(
                f"{name}: {len(found)} of {len(some)} found ({share:.0%}), "
                f"the true cause first in {len(first)} of these ({causes:.0%})"
            )
            reached = reached and share >= 0.85 and causes >= 0.9
    return reached


def print_healthy(name: str, seed: int, outcome: Outcome) -> bool:
    """What was said of a sound run; whether it was next to nothing."""
    notes = [one for one in outcome.incidents if one.severity == "note"]
    false = [a for a in outcome.alerts if a.severity != "note"]
    good = not false and len(notes) <= 3 and not outcome.failures
    print(f"healthy/{name:22} {seed} {len(false)} false alarms, {len(notes)} notes")
    for alert in [*false[:4], *[note.cause for note in notes]]:
        print(f"      {alert.severity}: {alert.message[:150]}")
    for what, why in outcome.failures.items():
        print(f"      {what} failed: {why}")
    return good


def print_sound(found: Sequence[tuple[Program, Sequence[Alert]]]) -> bool:
    """How often a sound training was disturbed; whether that was never, in the scored half, and
    once at most in all."""
    disturbed = {"tuned": 0, "scored": 0}
    for share in disturbed:
        some = [(program, alerts) for program, alerts in found if program.share == share]
        steps = sum(program.steps for program, _ in some)
        disturbed[share] = sum(bool(alerts) for _, alerts in some)
        rate = 1e4 * sum(len(alerts) for _, alerts in some) / max(steps, 1)
        print(
            f"sound trainings, {share}: {disturbed[share]} of {len(some)} disturbed, {rate:.2f} "
            f"false alarms per 10,000 steps ({steps:,} steps)"
        )
    return not disturbed["scored"] and disturbed["tuned"] <= 1
