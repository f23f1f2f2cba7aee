"""warn(): warns, or logs where a filter makes an error of it."""

from __future__ import annotations

import logging
import warnings

import pytest

from hookstats.stats.messages import warn


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
