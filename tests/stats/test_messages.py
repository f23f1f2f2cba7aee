"""warn(), say() and printable(): nothing that they show raises, whatever shows it."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookstats.stats.messages import error_text, say, warn
from hookstats.stats.printable import printable


class Raising(logging.Handler):
    """A handler that raises."""

    def emit(self, record: logging.LogRecord) -> None:
        raise KeyError("handler")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def test_a_warning() -> None:
    with pytest.warns(UserWarning, match="^look$") as caught:
        warn("look", UserWarning)
    assert caught[0].filename == "hookstats"
    shown = warnings.formatwarning("hookstats: look", UserWarning, caught[0].filename, 1)
    assert shown == "hookstats: warning: look\n"
    assert "x.py:3: UserWarning: look" in warnings.formatwarning("look", UserWarning, "x.py", 3)


def test_what_would_be_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "hookstats"):
        warn("look")
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("hookstats", "look")]


@pytest.mark.parametrize("tell", [warn, say])
def test_what_cannot_be_shown_raises_nothing(
    tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = Raising()
    logging.getLogger("hookstats").addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: [].pop())
            monkeypatch.setattr(sys, "stderr", closed())
            tell("first")
            tell("second")
    finally:
        logging.getLogger("hookstats").removeHandler(handler)


def test_say(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    say("12 steps")
    with caplog.at_level(logging.WARNING, "hookstats"):
        say("silenced")
    assert capsys.readouterr().err == "hookstats: 12 steps\n"
    assert caplog.messages == []


def test_without_stderr_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        say("12 steps")


def test_an_error_that_has_no_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise self

    assert error_text(Silent()) == "Silent"
    assert error_text(ValueError("\x1b")) == r"ValueError: \x1b"


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
