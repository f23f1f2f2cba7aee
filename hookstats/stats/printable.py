"""printable(): text from anywhere, as people may read it."""

from __future__ import annotations


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


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
