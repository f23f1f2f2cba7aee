"""warn() and say(): nothing that they show raises, whatever shows it."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable

import pytest

from hookstats.stats.messages import error_text, say, warn


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
