"""describe(), lines(): the machine and what was measured there, in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.measured import Case, Results, Table

NOTE = (
    "~ disturbed: the median is over 1.5 times the least (on a busy machine, others may be, too)\n"
    "* computes only a part of it; it does not count as a peer in the last column"
)

_WORDS = {
    "last_cache": "L3 {}",
    "cores": "{} cores",
    "multiprocessors": "{} multiprocessors",
    "l2_bytes": "L2 {} bytes",
    "threads": "{} threads",
    "driver": "driver {}",
    "cuda": "CUDA {}",
    "torch": "torch {}",
    "python": "Python {}",
    "hookstats": "hookstats {}",
}

Rows = list[list[str]]


def describe(machine: Mapping[str, Any]) -> str:
    """What `bench.machine` found, in one line."""
    return ", ".join(_WORDS.get(name, "{}").format(value) for name, value in machine.items())


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        pairs = zip(cells, widths[1:], strict=True)
        yield "  ".join([name.ljust(widths[0])] + [v.rjust(width) for v, width in pairs]).rstrip()


def lines(results: Results) -> Iterator[str]:
    """Every table of `results`, each with its title and what is to be known of its peers."""
    for table, cases in results.tables():
        yield from ("", table.title)
        yield from aligned(_by_peer(table, cases) if table.by_peer else _by_case(table, cases))
        yield from _notes(table, cases)
        if table.variants:
            yield from ("", f"{table.title}: {table.varied}")
            yield from aligned(_variants(table, cases))


def _measured(peers: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Those of `peers` that any of `cases` has."""
    return [peer for peer in peers if any(peer in case.seconds for case in cases)]


def _cell(case: Case, peer: str) -> str:
    if peer not in case.seconds:
        return "- "
    value = case.value(peer)
    text = f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return text + ("~" if case.disturbed(peer) else " ")


def _ratio(case: Case, peer: str, to: str | None) -> str:
    if to is None or peer not in case.seconds or to not in case.seconds:
        return "-"
    ratio = case.ratio(peer, to)
    return f"{ratio:.3f}" if ratio < 0.1 else f"{ratio:.2f}"


def _by_case(table: Table, cases: Sequence[Case]) -> Rows:
    """Medians by peer, then hookstats by the floor and by the best peer."""
    every = dict.fromkeys(peer for case in cases for peer in case.seconds)
    others = [p for p in every if p not in (table.floor, *table.ours, *table.variants)]
    columns = [table.floor, *table.ours, *others]
    facts = dict.fromkeys(name for case in cases for name in case.facts if not name.startswith("_"))
    head = [table.unit, *(f"{p}*" if p in table.parts else p for p in columns)]
    head += [f"{mine}/{table.floor}" for mine in table.ours if mine != table.floor]
    compared = any(case.best_peer for case in cases)
    if compared:
        head += [f"{table.ours[0]}/best peer", "best peer"]
    rows = [head + list(facts)]
    for case in cases:
        row = [case.name, *(_cell(case, peer) for peer in columns)]
        row += [_ratio(case, mine, table.floor) for mine in table.ours if mine != table.floor]
        if compared:
            row += [_ratio(case, table.ours[0], case.best_peer), case.best_peer or "-"]
        rows.append(
            row + [f"{case.facts[name]:g}" if name in case.facts else "-" for name in facts]
        )
    return rows


def _by_peer(table: Table, cases: Sequence[Case]) -> Rows:
    """For every peer its median, what it adds to the floor, also by a read of all that is observed,
    and its ratio to the floor."""
    rows = []
    for case in cases:
        if rows:
            rows.append([""] * len(rows[0]))
        read = [f"added/{table.read}"] if table.read in case.seconds else []
        head = [f"{case.name}, {table.unit}", "all", "added", *read, f"/{table.floor}"]
        rows.append([*head, "/best peer"])
        for peer in case.seconds:
            name = f"{peer}*" if peer in table.parts else peer
            row = [name, _cell(case, peer)]
            if peer == table.read:
                rows.append([*row, *["-"] * (len(head) - 1)])
                continue
            row += [f"{case.over_floor(peer):.2f}", *(f"{case.to_read(peer):.2f}" for _ in read)]
            row.append(f"{case.ratio(peer, table.floor):.3f}")
            rows.append([*row, _ratio(case, peer, case.best_peer if peer in table.ours else None)])
    return rows


def _variants(table: Table, cases: Sequence[Case]) -> Rows:
    """hookstats under other circumstances, and by how much it is slower there."""
    ours = table.ours[0]
    variants = _measured(table.variants, cases)
    rows = [[table.unit, ours, *variants, *(f"{v}/{ours}" for v in variants)]]
    for case in cases:
        if any(variant in case.seconds for variant in variants):
            row = [case.name, *(_cell(case, peer) for peer in (ours, *variants))]
            rows.append(row + [_ratio(case, variant, ours) for variant in variants])
    return rows


def _notes(table: Table, cases: Sequence[Case]) -> Iterator[str]:
    """What the peers compute that compute a part, and who is missing, each reason once."""
    for peer in _measured(list(table.parts), cases):
        yield f"* {peer}: {table.parts[peer]}"
    missing: dict[str, list[str]] = {}
    for case in cases:
        for peer, why in case.absent.items():
            missing.setdefault(f"- {peer}: {why}", []).append(case.name)
    for line, names in missing.items():
        yield line if len(names) == len(cases) else f"{line} ({', '.join(names)})"
