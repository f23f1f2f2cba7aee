"""Ledger: the CSV file of every point that was measured, from which another run goes on."""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from bench.cuda.tune.cases import Case
from bench.cuda.tune.policy import Compiled, Plan

AGAIN = -1
"""The turn of what seemed too slow, and may have been disturbed."""


class Machine(NamedTuple):
    """What a time depends on besides the numbers; points of another machine are not used."""

    device: str
    capability: str
    driver: str
    sources: str
    """A hash of what is compiled."""


class Key(NamedTuple):
    """A point: two with equal plans launch the same, whatever the numbers were."""

    compiled: Compiled
    case: Case
    plan: str
    turn: int
    """0; or `AGAIN`; or when the last two policies take turns, which one it is."""


class Measured(NamedTuple):
    """What came of a point."""

    status: str
    """"ok", "wrong" (a result differs) or "crashed"."""
    seconds: float | None = None
    """Of a launch, the median."""
    least: float | None = None
    most: float | None = None
    megahertz: float | None = None
    text: str = ""


COLUMNS = (
    *("date", "commit", *Machine._fields, *Compiled._fields, *Case._fields, *Plan._fields),
    *("plan", "turn", *Measured._fields),
)


class Ledger:
    """The points, in the file and by key."""

    def __init__(self, path: Path, machine: Machine, commit: str = "unknown") -> None:
        """Reads what an earlier run left, of which the last line may be cut off."""
        self.path = path
        self.machine = machine
        self.commit = commit
        self.of_others = 0
        """How many of the file's points another machine or other sources had."""
        self._points: dict[Key, Measured] = {}
        self._plans: dict[tuple[Compiled, Case, Plan], str] = {}
        whole = ""
        if path.is_file():
            text = path.read_text()
            whole = text[: text.rfind("\n") + 1]
            if whole and next(csv.reader(whole.splitlines())) != list(COLUMNS):
                raise ValueError(f"{path} has other columns; expected a file of this tuner's")
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = ",".join(COLUMNS) + "\n"
        path.write_text(whole)
        for row in csv.DictReader(whole.splitlines()):
            self._take(row)

    def __len__(self) -> int:
        return len(self._points)

    def find(self, key: Key) -> Measured | None:
        """What is known of a point."""
        return self._points.get(key)

    def plan(self, compiled: Compiled, case: Case, plan: Plan) -> str | None:
        """What a plan of these numbers launches, if a point of theirs was measured."""
        return self._plans.get((compiled, case, plan))

    def add(self, key: Key, plan: Plan, measured: Measured) -> None:
        """Keeps a point at once: the next one may be the last."""
        measured = measured._replace(text=" ".join(measured.text.split()))  # a point is a line
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        found = ("" if each is None else each for each in measured)
        values = [
            *(now, self.commit, *self.machine, *key.compiled, *key.case, *plan),
            *(key.plan, key.turn, *found),
        ]
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(values)
        self._points[key] = measured
        self._plans[key.compiled, key.case, plan] = key.plan

    def _take(self, row: dict[str, str]) -> None:
        if Machine(*(row[name] for name in Machine._fields)) != self.machine:
            self.of_others += 1
            return

        def number(name: str) -> float | None:
            return float(row[name]) if row[name] else None

        compiled = Compiled(row["agent"], *(int(row[name]) for name in Compiled._fields[1:]))
        case = Case(row["dtype"], row["layout"], row["histograms"], float(row["megabytes"]))
        plan = Plan(*(int(row[name]) for name in Plan._fields))
        key = Key(compiled, case, row["plan"], int(row["turn"]))
        self._points[key] = Measured(
            row["status"],
            number("seconds"),
            number("least"),
            number("most"),
            number("megahertz"),
            row["text"],
        )
        self._plans[compiled, case, plan] = row["plan"]
