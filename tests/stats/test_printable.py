"""printable(): text from anywhere, as people may read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookstats.stats.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("encoder.0.réseau", "encoder.0.réseau"),
        ("层 1", "层 1"),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("a\r\nb\tc\0", r"a\r\nb\tc\x00"),
        ("\x9b31m", r"\x9b31m"),  # the one character that begins a sequence in 8 bits
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("half\udc80", r"half\udc80"),
    ],
)
def test_what_has_no_shape_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_feeds_may_stay() -> None:
    assert printable("two\nlines\r\n", lines=True) == "two\nlines\\r\n"


@given(st.text(st.characters()))
def test_whatever_comes_can_be_printed(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()  # also halves of characters
