"""printable(): text from anywhere, as people may read it; aligned(): tables of it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence


def printable(text: str, *, lines: bool = False) -> str:
    r"""`text` with an escape such as ``\x1b`` for each character that a terminal does not draw.

    Those are what Python's `str.isprintable` calls so: control characters, which would drive a
    terminal, marks that turn the direction of the text around, halves of characters that cannot be
    encoded. Names of modules may have all of these.

    lines: keep line feeds, of a text of several lines.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or (lines and one == "\n") else _escape(one) for one in text
    )


def shown(value: object) -> str:
    """The beginning of the repr of `value`, in one line, for an error."""
    return " ".join(f"{value!r:.100}".split())


def aligned(rows: Sequence[Sequence[str]], right: Container[int], gap: str = "  ") -> Iterator[str]:
    """A line for each row of a table, whose columns are aligned, those in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        line = (cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in cells)
        yield gap.join(line).rstrip()


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
