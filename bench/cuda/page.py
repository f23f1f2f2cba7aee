"""PAGE, filled(): docs/cuda.md, into which programs write what they found."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda.md"
INSTRUCTIONS = "<!-- the table of bench.cuda.sass -->\n"
PREDICTED = "<!-- what follows from it -->\n"
WHERE = "<!-- where it was measured -->\n"
MEASURED = "<!-- what gpu-check measured -->\n"
END = "<!-- end -->\n"


def filled(page: str, begin: str, text: str) -> str:
    """`page` with `text` between the line `begin`, one of the above, and the next END.

    Raises:
        ValueError: the page has no such lines.
    """
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(END)
    if not ended:
        raise ValueError(f"docs/cuda.md: expected {begin!r} and {END!r} after it")
    return before + begun + text + ended + after
