"""Coverage: what a watch observed and what it left out, site by site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookstats.records.alerts import Incident, count_by_severity
from hookstats.records.display import view_of
from hookstats.records.keys import MODULE_KINDS, label, plain_kind
from hookstats.stats.printable import aligned, printable


class Counts:
    """What became of one site's tensors so far, as in SiteCoverage; in C++ it is `_hooks.Site`."""

    __slots__ = ("backwards", "disabled", "missing", "observed", "skipped", "unmasked")

    def __init__(self) -> None:
        self.observed = self.backwards = self.missing = self.unmasked = 0
        self.skipped: dict[str, int] = {}
        self.disabled = False
        """Whether the site takes no more tensors."""

    @property
    def forwards(self) -> int:
        """The calls that were counted: each by its outcome, so that an interrupt finds no call half
        counted."""
        return self.observed + self.missing + sum(self.skipped.values())

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def count(self, reason: str | None, whole: bool = False) -> None:
        """Count a tensor, and why it was left out; None: it was accumulated, `whole` with all its
        rows, though there is a mask."""
        if reason is None:
            self.observed += 1
            self.unmasked += whole
        else:
            self.skip(reason)

    def count_gradient(self, first: bool, reason: str | None, whole: bool = False) -> None:
        """Count a gradient that arrived; if it is the first of its tensor, with its outcome."""
        self.backwards += 1
        if first:
            self.count(reason, whole)
            self.missing -= 1


@dataclass(frozen=True)
class SiteCoverage:
    """What became of one watched tensor in the recorded steps.

    forwards = observed + missing + the sum of skipped.
    """

    name: str
    kind: str
    forwards: int
    """The calls that had the tensor; for a parameter, the steps of its optimizer."""
    observed: int
    """The calls whose tensor, or its gradient, is in the statistics."""
    skipped: dict[str, int]
    """The calls that were left out, by reason."""
    backwards: int
    """The gradients that arrived: several per call if several backwards go through a graph."""
    missing: int
    """The calls whose gradient has not arrived (yet)."""
    error: str | None
    """The error that disabled the site; None if none did."""
    unmasked: dict[str, int] = field(default_factory=dict)
    """Of the observed calls, those whose tensor is in the statistics with all its rows though there
    is a mask, by reason."""


@dataclass(frozen=True)
class Coverage:
    """One row per site, in the order of selection; a site that never had a tensor has zeros."""

    rows: tuple[SiteCoverage, ...]
    steps: int
    """Steps closed, recorded or not."""
    discarded: int
    """The tensors in a step that was still open when the watch was closed."""
    stalls: int
    """The number of times that training waited for the previous step to be read out."""
    failures: dict[str, str]
    """The errors of what failed and was disabled, such as a sink, by its description."""
    budget: dict[str, Any] | None = None
    """With every="auto": the budget's `share`, and its `choices`: each with the `step` from which
    it holds, `every` so many steps, and the share that recording `takes` so. Else None."""
    evaluations: int = 0
    """The calls of models that were left out as those of an evaluation though gradients were on, or
    the model in training mode: no site counts them."""
    unseen: dict[str, str] = field(default_factory=dict)
    """What could not be looked at, or not at all of it, with the reason."""

    def __iter__(self) -> Iterator[SiteCoverage]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[str, str]) -> SiteCoverage:
        """The row of a (name, kind)."""
        for row in self.rows:
            if (row.name, row.kind) == key:
                return row
        raise KeyError(key)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able types, with one dict per row."""
        return {**vars(self), "rows": tuple(dict(vars(row)) for row in self.rows)}

    def summary(self, incidents: Sequence[Incident] | None, *, has_loss: bool) -> str:
        """What was seen and what was not, on one line; incidents: None without rules."""
        calls: dict[str, int] = {}
        for row in self.rows:
            if plain_kind(row.kind) in MODULE_KINDS:
                calls[row.name] = calls.get(row.name, 0) + row.forwards
        idle = sum(not number for number in calls.values())
        observed = sum(row.observed > 0 for row in self.rows)
        seen = [_count(self.steps, "step"), _count(observed, "tensor")]
        if incidents is not None:
            seen.append(count_by_severity(incidents))
        unseen = {
            "no step was closed": not self.steps,
            f"{_count(idle, 'module')} never called": idle,
            "no loss logged": not has_loss,
        }
        words = [what for what, is_so in unseen.items() if is_so]
        return "; ".join((", ".join(seen), *words))

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    def __repr__(self) -> str:
        observed = sum(row.observed for row in self.rows)
        disabled = sum(row.error is not None for row in self.rows)
        return (
            f"Coverage({len(self.rows)} sites, {self.steps} steps, {observed} tensors observed, "
            f"{disabled} sites disabled, {len(self.failures)} failures)"
        )

    def __str__(self) -> str:
        """A table, with errors and failures below it."""
        header = ("name", "kind", "forwards", "observed", "missing", "backwards", "skipped")
        lines = [header] + [
            (
                label(row.name),
                printable(row.kind),
                str(row.forwards),
                str(row.observed),
                str(row.missing),
                str(row.backwards),
                ", ".join(f"{printable(why)}: {n}" for why, n in row.skipped.items()),
            )
            for row in self.rows
        ]
        text = list(aligned(lines, right=range(2, 6)))
        text += [f"{row.kind} of {row.name!r}: {row.error}" for row in self.rows if row.error]
        text += _of_masks(self.rows)
        text += _of_backwards(self.rows)
        text += [f"{what}: {why}" for what, why in self.failures.items()]
        text += [f"{what} is not seen: {why}" for what, why in self.unseen.items()]
        text.append(f"{self.steps} steps, {self.stalls} stalls, {self.discarded} discarded")
        text += [] if self.budget is None else _of_budget(**self.budget)
        return printable("\n".join(text), lines=True)


def _count(number: int, what: str) -> str:
    """A number of things: "1 step", "12,000 steps"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _of_masks(rows: Sequence[SiteCoverage]) -> Iterator[str]:
    """What has all its rows though there is a mask, for people: a line for each reason."""
    for reason in sorted({reason for row in rows for reason in row.unmasked}):
        found = [row for row in rows if reason in row.unmasked]
        calls = sum(row.unmasked[reason] for row in found)
        yield f"all rows, {reason}: {calls} calls of {_listed(found)}"


def _of_backwards(rows: Sequence[SiteCoverage]) -> Iterator[str]:
    """Whose statistics have more gradients than calls, for people, on one line."""
    found = [row for row in rows if row.backwards > row.forwards - row.missing]
    if found:
        gradients = sum(row.backwards for row in found)
        calls = sum(row.forwards - row.missing for row in found)
        about = f"{gradients} gradients of {calls} calls of {_listed(found)}"
        yield f"several backwards, merged: {about}"


def _listed(rows: Sequence[SiteCoverage]) -> str:
    sites = ", ".join(f"{printable(row.kind)} of {label(row.name)}" for row in rows[:3])
    return sites + ", ..." * (len(rows) > 3)


def _of_budget(share: float, choices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for choice in choices:
        takes = choice["takes"]
        known = "" if takes is None else f", which takes {takes:.2%}"
        yield f"budget {share:.2%}: every={choice['every']} from step {choice['step']} on{known}"
