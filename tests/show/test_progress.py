"""Progress bars: for what takes long, on stderr, in terminals alone."""

from __future__ import annotations

import io
import sys

import pytest

from hookstats.show import progress
from hookstats.show.progress import track


def test_what_takes_long_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(progress, "LONG", -1.0)
    monkeypatch.setattr(progress, "_LOOK", -1.0)
    assert list(track(range(4), "comparing")) == [0, 1, 2, 3]
    assert "comparing" in stderr.getvalue()
    assert "2/4" in stderr.getvalue() or "3/4" in stderr.getvalue()


def test_what_is_quick_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    assert list(track(range(100), "comparing")) == list(range(100))
    assert stderr.getvalue() == ""


def test_a_pipe_gets_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LONG", -1.0)
    monkeypatch.setattr(progress, "_LOOK", -1.0)
    assert list(track(range(3), "comparing")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_one_that_cannot_be_shown_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(progress, "LONG", -1.0)
    monkeypatch.setattr(progress, "_LOOK", -1.0)
    taken = []
    for item in track(range(6), "comparing"):
        taken.append(item)
        if item == 3:
            stderr.close()
    assert taken == [0, 1, 2, 3, 4, 5]


def test_an_error_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(progress, "LONG", -1.0)
    monkeypatch.setattr(progress, "_LOOK", -1.0)
    steps = track(range(9), "comparing")
    for step in steps:
        if step == 5:
            break
    steps.close()
    assert "\x1b[?25h" in stderr.getvalue()  # the cursor is shown again


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal for stderr; pytest would replace that of a fixture."""
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return stderr
