"""Mutant: a bug of one line, and the narrow test that catches it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One bug."""

    bug: str
    """What goes wrong, in words."""
    file: str
    before: str
    """A text that occurs once in the file."""
    after: str
    test: str
    """What catches the bug: a test as pytest names it, or a program of tests/cpp."""
