"""Coverage: what a watch did and did not see, site by site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hookstats.records.keys import label


class Counts:
    """What became of one site so far, as SiteCoverage has it; `_hooks.Site` is the same in C++."""

    __slots__ = ("backwards", "disabled", "forwards", "missing", "observed", "skipped")

    def __init__(self) -> None:
        self.forwards = self.observed = self.backwards = self.missing = 0
        self.skipped: dict[str, int] = {}
        self.disabled = False
        """Whether the site takes no tensor any more."""

    def skip(self, reason: str) -> None:
        """Count a tensor that was left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


@dataclass(frozen=True)
class SiteCoverage:
    """What became of one watched tensor in the recorded steps.

    forwards = observed + missing + the sum of skipped.
    """

    name: str
    kind: str
    forwards: int
    """Calls that gave the tensor; for a parameter, steps of its optimizer."""
    observed: int
    """Of these, how many have their tensor, or its gradient, in the statistics."""
    skipped: dict[str, int]
    """How many were left out, by reason."""
    backwards: int
    """Gradients that came: several a call where a graph is gone through several times."""
    missing: int
    """Calls whose gradient has not come (yet)."""
    error: str | None
    """Why the site was disabled, if it was."""


@dataclass(frozen=True)
class Coverage:
    """One row a site, in order of choice; sites that never had a tensor are rows of zeros."""

    rows: tuple[SiteCoverage, ...]
    steps: int
    """Steps closed, recorded or not."""
    discarded: int
    """Tensors folded into a step that was still open when the watch was closed."""
    stalls: int
    """How often the training waited for a step before to be read out."""
    failures: dict[str, str]
    """What stopped recording, such as a sink, with its error."""

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
        """JSON-able: the fields, with a dict for each row."""
        return asdict(self)

    def __str__(self) -> str:
        """A table, and below it what went wrong."""
        header = ("name", "kind", "forwards", "observed", "missing", "backwards", "skipped")
        lines = [header] + [
            (
                label(row.name),
                row.kind,
                str(row.forwards),
                str(row.observed),
                str(row.missing),
                str(row.backwards),
                ", ".join(f"{reason}: {n}" for reason, n in row.skipped.items()),
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        text += [f"{row.kind} of {row.name!r}: {row.error}" for row in self.rows if row.error]
        text += [f"{what}: {why}" for what, why in self.failures.items()]
        text.append(f"{self.steps} steps, {self.stalls} stalls, {self.discarded} discarded")
        return "\n".join(text)
