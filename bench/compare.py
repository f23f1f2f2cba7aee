"""Compares two runs of the benchmarks: `python -m bench.compare THEN.json NOW.json`.

What is compared is hookstats' ratio to the floor of its case, a read of the same bytes or a step
without hooks, timed in turn with it: times alone say as much about the machine's other work.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from statistics import fmean

from bench.measured import Case, Results
from bench.tables import aligned, describe

MARKED = 1.1
"""A change from which on a line is marked."""


def changes(then: Results, now: Results) -> Iterator[tuple[Case, str, float, float]]:
    """Case, peer, and its ratio to the floor then and now, of hookstats in what both runs have."""
    before = {(case.table.title, case.name): case for case in then.cases}
    for case in now.cases:
        old = before.get((case.table.title, case.name))
        floor = case.table.floor
        for peer in (*case.table.ours, *case.table.variants):
            if old and peer != floor and {peer, floor} <= case.seconds.keys() & old.seconds.keys():
                yield case, peer, old.ratio(peer, floor), case.ratio(peer, floor)


def lines(then: Results, now: Results) -> Iterator[str]:
    """A table a group, each with its geometric mean; marked where it got slower or faster."""
    groups: dict[str, list[tuple[Case, str, float, float]]] = {}
    for change in changes(then, now):
        groups.setdefault(change[0].table.title, []).append(change)
    for title, group in groups.items():
        rows = [[title, "", f"/{group[0][0].table.floor} then", "now", "now/then", ""]]
        for case, peer, old, new in group:
            mark = "slower" if new > old * MARKED else "faster" if new < old / MARKED else ""
            rows.append([case.name, peer, f"{old:.2f}", f"{new:.2f}", f"{new / old:.2f}", mark])
        mean = exp(fmean(log(new / old) for *_, old, new in group))
        yield from ("", *aligned([*rows, ["geometric mean", "", "", "", f"{mean:.2f}", ""]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("then", type=Path)
    parser.add_argument("now", type=Path)
    parser.add_argument(
        "--fail-over",
        type=float,
        metavar="RATIO",
        help="exit with 1 where a ratio to the floor grew by more than this factor",
    )
    arguments = parser.parse_args()
    for path in (arguments.then, arguments.now):
        if not path.exists():
            parser.error(
                f"{path} does not exist; expected what `make bench` or `make gpu-check` wrote"
            )
    then, now = Results.load(arguments.then), Results.load(arguments.now)
    factors = [new / old for _, _, old, new in changes(then, now)]
    if not factors:
        parser.error("the two runs have no case in common; expected runs of the same benchmarks")
    print(f"then: {describe(then.machine)}\nnow:  {describe(now.machine)}")
    print("\n".join(lines(then, now)))
    if arguments.fail_over is not None:
        worst = max(factors)
        if worst > arguments.fail_over:
            parser.exit(1, f"\nsomething takes {worst:.2f} times as long as then\n")


if __name__ == "__main__":
    main()
