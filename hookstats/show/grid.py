"""Tables without lines that fit the terminal: long names are elided in the middle.

No numerical library is imported here, and rich only when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Cell = tuple[str, str]
"""A text and its style, "" for none."""

_LEAST = len("grad_output")  # the least room for a name


def require_rich() -> Any:
    """The rich package with the modules that hookstats uses.

    Raises:
        ImportError: rich is not installed; the message has the command that installs it.
    """
    try:
        import rich.cells
        import rich.console
        import rich.live
        import rich.segment
        import rich.table
        import rich.text
    except ImportError as error:
        raise ImportError(f"tables need rich ({error}): pip install 'hookstats[cli]'") from error
    return rich


def count(number: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def print_grid(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]], **layout: Any
) -> None:
    """Print a `grid` at once: line by line, rich takes seconds for ten thousand lines."""
    lines = grid(console, columns, rows, **layout)
    segments = [segment for line in lines for segment in line.render(console, "\n")]
    console.print(require_rich().segment.Segments(segments), crop=False)


def grid(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    text: int,
    elided: int,
    title: str | None = None,
) -> Iterator[Text]:
    """The lines of a table for this console; in a pipe nothing is left out.

    Cells are made `printable`.

    columns: headers, which may have several lines. text: the number of leading columns that are
    text; the others are numbers. elided: the number of leading columns that are elided where the
    terminal is too narrow.
    """
    rich = require_rich()
    body = [[(printable(cell), style) for cell, style in row] for row in rows]
    widths = _widths(columns, body)
    if console.is_terminal:
        room = console.width - _width(widths[elided:]) - 1
        body = _elide(body, widths[:elided], room, console.encoding.startswith("utf"))
        widths = _widths(columns, body)
    heads = [*zip_longest(*(name.split("\n")[::-1] for name in columns), fillvalue="")][::-1]
    if title is not None:
        yield rich.text.Text.assemble((printable(title), "table.title"))
    pads = [str.ljust] * text + [str.rjust] * (len(columns) - text)
    for row in (*([(name, "table.header") for name in names] for names in heads), *body):
        cells = [
            pad(cell, width + len(cell) - _len(cell))
            for pad, (cell, _), width in zip(pads, row, widths, strict=True)
        ]
        line, start = rich.text.Text(" ".join(cells).rstrip()), 0
        for padded, (cell, style) in zip(cells, row, strict=True):
            if cell and style:
                place = start + padded.index(cell)
                line.stylize(style, place, place + len(cell))
            start += len(padded) + 1
        yield line


def fits(console: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bool:
    """Whether a table of these rows needs no elision in this console."""
    return not console.is_terminal or _width(_widths(columns, rows)) <= console.width


def _widths(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[int]:
    """The width of each column, in cells of the terminal."""
    widths = [max(map(_len, name.split("\n"))) for name in columns]
    for i, column in enumerate(zip(*rows, strict=True)):
        widths[i] = max(widths[i], max(_len(cell) for cell, _ in column))
    return widths


def _len(text: str) -> int:
    return len(text) if text.isascii() else int(require_rich().cells.cell_len(text))


def _width(widths: Sequence[int]) -> int:
    """The width of columns with a space between them."""
    return sum(widths) + max(len(widths) - 1, 0)


def _elide(
    rows: list[list[Cell]], widths: Sequence[int], room: int, unicode: bool
) -> list[list[Cell]]:
    """The rows with their leading columns in `room` cells; the widest of them are shortened."""
    cap = max(widths, default=0)
    while cap > _LEAST and sum(min(width, cap) for width in widths) + len(widths) - 1 > room:
        cap -= 1
    for i, width in enumerate(widths):
        if width > cap:
            short = elide([row[i][0] for row in rows], cap, "…" if unicode else "..")
            rows = [
                [*row[:i], (name, row[i][1]), *row[i + 1 :]]
                for row, name in zip(rows, short, strict=True)
            ]
    return rows


def elide(names: Sequence[str], width: int, mark: str = "…") -> list[str]:
    """The names in `width` characters, with `mark` in the middle of longer ones.

    The mark is about a third from the left, moved where that keeps more of the names distinct.
    """
    room = width - len(mark)

    def shortened(name: str, head: int) -> str:
        if len(name) <= width:
            return name
        return name[:head] + mark + name[len(name) - (room - head) :]

    def distinct(head: int) -> int:
        return len({shortened(name, head) for name in set(names)})

    best = max(range(room + 1), key=lambda head: (distinct(head), -abs(head - room // 3)))
    return [shortened(name, best) for name in names]
