"""Report: the tables that a run of the benchmarks ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

NOTE = "~ disturbed: the median is over 1.5 times the least (on a busy machine, others may be, too)"


def cell(seconds: Sequence[float], scale: float) -> str:
    """The median of `seconds` in another unit, marked where it was disturbed."""
    middle = median(seconds)
    return f"{middle * scale:.2f}" + ("~" if middle > 1.5 * min(seconds) else " ")


class Report:
    """Tables by title, filled row by row while the benchmarks run."""

    def __init__(self) -> None:
        self._tables: dict[str, list[Mapping[str, str]]] = {}

    def add(self, title: str, row: Mapping[str, str]) -> None:
        """Add `row`, cells by column, to the table of that title; its rows share their columns."""
        self._tables.setdefault(title, []).append(row)

    def lines(self) -> Iterator[str]:
        """The tables as text: the first column to the left, the others to the right."""
        for title, rows in self._tables.items():
            cells = [tuple(rows[0])] + [tuple(row.values()) for row in rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            yield ""
            yield title
            for name, *values in cells:
                pairs = zip(values, widths[1:], strict=True)
                yield "  ".join([name.ljust(widths[0])] + [v.rjust(width) for v, width in pairs])
