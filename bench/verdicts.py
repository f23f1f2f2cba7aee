"""Target, Verdict, judge(): what is to be reached, and whether what was measured reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.measured import Results
from bench.tables import aligned

Found = Iterator[tuple[str, float]]
"""Figures, each with the case it is of."""


@dataclass(frozen=True)
class Target:
    """A figure that holds for all cases, or does not."""

    claim: str
    limit: float
    figures: Callable[[Results], Found]
    unit: str = ""
    at_least: bool = False
    """Whether `limit` is the least allowed, rather than the most."""


@dataclass(frozen=True)
class Verdict:
    """Whether one target is reached by all figures that it is about."""

    target: str
    bound: float
    unit: str
    at_least: bool
    worst: float | None
    """None where nothing was measured."""
    where: str
    """The case of the worst figure."""
    met: int
    """How many figures reach the bound,"""
    cases: int
    """of how many."""

    @property
    def reached(self) -> bool | None:
        """None where nothing was measured."""
        return None if self.worst is None else self.met == self.cases

    @property
    def sign(self) -> str:
        """How the worst figure has to compare with the bound."""
        return ">=" if self.at_least else "<="

    @property
    def says(self) -> str:
        """The verdict in words: by how much of the bound the worst figure falls short."""
        if self.worst is None:
            return "not measured"
        if self.reached:
            return "reached"
        most, least = (self.bound, self.worst) if self.at_least else (self.worst, self.bound)
        return f"short by {100 * (most / least - 1):.0f}%" if least else "short"


def judge(targets: Iterable[Target], results: Results) -> Iterator[Verdict]:
    """What `results` say of each target, by the worst figure."""
    for target in targets:
        figures = list(target.figures(results))
        worst, where, met = None, "not measured", 0
        if figures:
            pick = min if target.at_least else max
            where, worst = pick(figures, key=lambda figure: figure[1])
            for _, figure in figures:
                met += figure >= target.limit if target.at_least else figure <= target.limit
        yield Verdict(
            target.claim,
            target.limit,
            target.unit,
            target.at_least,
            worst,
            where,
            met,
            len(figures),
        )


def lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """A line per target: the limit, the worst that was measured and where, reached or short."""
    rows = [["target", "limit", "worst", "cases", "verdict", "the worst case"]]
    for v in verdicts:
        worst = "-" if v.worst is None else f"{v.worst:.2f}{v.unit}"
        cases = "-" if v.worst is None else f"{v.met}/{v.cases}"
        where = v.where if v.reached is False else ""
        limit = f"{v.sign} {v.bound:g}{v.unit}"
        rows.append([v.target, limit, worst, cases, v.says, where])
    yield from aligned(rows)
