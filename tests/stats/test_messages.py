"""warn(): warns, or logs where a filter makes an error of it."""

from __future__ import annotations

import logging

import pytest

from hookstats.stats.messages import warn


def test_a_warning() -> None:
    with pytest.warns(UserWarning, match="^look$") as caught:
        warn("look", UserWarning)
    assert caught[0].filename == __file__


def test_what_would_be_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "hookstats"):
        warn("look")
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("hookstats", "look")]
