"""terminal(): a stderr that is a terminal, for tests of progress bars."""

from __future__ import annotations

import io
import sys

import pytest


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
