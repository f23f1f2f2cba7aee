"""Table, Case, Results: what was measured, round by round, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Table:
    """What the cases of one table share."""

    title: str
    unit: str
    """Of its cells, such as "ns/element"."""
    scale: float
    """How many of the unit's first part a second has: 1e9 for ns."""
    floor: str
    """The peer that does the least: a read of the same bytes, a step without hooks."""
    ours: tuple[str, ...] = ("hookstats",)
    variants: tuple[str, ...] = ()
    """hookstats in other circumstances: a table of its own."""
    varied: str = "instruction sets and threads"
    """What the circumstances are."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Peers that compute less, and what they compute."""
    by_peer: bool = False
    """A line for every peer, rather than one for every case."""
    read: str = ""
    """The peer that only reads what ours observe: a measure of what they add to the floor."""


@dataclass
class Case:
    """One case of a table: what each peer took for it."""

    table: Table
    name: str
    size: float
    """What a time is divided by: elements, modules, steps."""
    seconds: dict[str, list[float]]
    """By peer, round by round; the i-th rounds of all were neighbours."""
    absent: dict[str, str] = field(default_factory=dict)
    """Peers that were not measured, and why."""
    facts: dict[str, float] = field(default_factory=dict)
    """What else is known of it, by name and unit."""

    def value(self, peer: str) -> float:
        """The median, in the table's unit."""
        return median(self.seconds[peer]) * self.table.scale / self.size

    def ratio(self, peer: str, to: str) -> float:
        """The median of the ratios of neighbouring rounds: what slows both is not in it."""
        pairs = zip(self.seconds[peer], self.seconds[to], strict=False)
        return median(mine / other for mine, other in pairs)

    def over_floor(self, peer: str) -> float:
        """The median of the differences of neighbouring rounds, in the table's unit."""
        pairs = zip(self.seconds[peer], self.seconds[self.table.floor], strict=False)
        return median(mine - other for mine, other in pairs) * self.table.scale / self.size

    def to_read(self, peer: str) -> float:
        """What `peer` adds to the floor, by a read of all that is observed; as `ratio`."""
        named = (peer, self.table.floor, self.table.read)
        rounds = zip(*(self.seconds[name] for name in named), strict=False)
        return median((mine - floor) / read for mine, floor, read in rounds)

    def disturbed(self, peer: str) -> bool:
        """Whether the median is over 1.5 times the least."""
        return median(self.seconds[peer]) > 1.5 * min(self.seconds[peer])

    @property
    def peers(self) -> tuple[str, ...]:
        """Those that compute all that hookstats does."""
        table = self.table
        other = {table.floor, *table.ours, *table.variants, *table.parts}
        return tuple(peer for peer in self.seconds if peer not in other)

    @property
    def best_peer(self) -> str | None:
        """The fastest of `peers`."""
        return min(self.peers, key=self.value, default=None)


class Results:
    """All that a run of the benchmarks measured, and where."""

    def __init__(
        self, machine: Mapping[str, Any], cases: Sequence[Case] = (), notes: Sequence[str] = ()
    ) -> None:
        self.machine = dict(machine)
        self.cases = list(cases)
        self.notes = list(notes)
        """What failed, what was not done, and what else is to be known."""

    def tables(self) -> Iterator[tuple[Table, list[Case]]]:
        """Every table with its cases, in the order in which they were measured."""
        by_title: dict[str, list[Case]] = {}
        for case in self.cases:
            by_title.setdefault(case.table.title, []).append(case)
        for cases in by_title.values():
            yield cases[0].table, cases

    def of(self, title: str) -> list[Case]:
        """The cases of the tables whose title begins with `title`."""
        return [case for case in self.cases if case.table.title.startswith(title)]

    def merge(self, newer: Results) -> Results:
        """These results, with the tables that `newer` has taken from there.

        Of another machine, or another torch, none are kept: they would be under the wrong name.
        """
        dated = {"date": newer.machine["date"]}
        if {**self.machine, **dated} != newer.machine:
            return newer
        titles = {case.table.title for case in newer.cases}
        kept = [case for case in self.cases if case.table.title not in titles]
        return Results(newer.machine, kept + newer.cases, self.notes + newer.notes)

    def save(self, path: Path) -> None:
        """Write JSON, a case a line."""
        tables = {table.title: asdict(table) for table, _ in self.tables()}
        cases = [
            json.dumps(
                {
                    "table": case.table.title,
                    "name": case.name,
                    "size": case.size,
                    "seconds": {
                        peer: [float(f"{s:.4g}") for s in seconds]
                        for peer, seconds in case.seconds.items()
                    },
                    "absent": case.absent,
                    "facts": case.facts,
                }
            )
            for case in self.cases
        ]
        head = json.dumps(
            {"machine": self.machine, "notes": self.notes, "tables": tables}, indent=1
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head[:-2] + ',\n "cases": [\n  ' + ",\n  ".join(cases) + "\n ]\n}\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` wrote."""
        found = json.loads(path.read_text())
        tables = {
            title: Table(
                **table | {"ours": tuple(table["ours"]), "variants": tuple(table["variants"])}
            )
            for title, table in found["tables"].items()
        }
        cases = [Case(**{**case, "table": tables[case["table"]]}) for case in found["cases"]]
        return cls(found["machine"], cases, found["notes"])
