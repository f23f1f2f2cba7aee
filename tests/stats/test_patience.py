"""Patience: it counts the time in which the process runs."""

from __future__ import annotations

import time

import pytest

from hookstats.stats.patience import TICK, Patience


def test_a_process_that_was_stopped_goes_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    patience = Patience(10.0)
    asked = 0
    for seconds in (TICK, 3600.0, TICK, 60.0):
        assert patience.tick == TICK
        now += seconds
        assert not patience.is_over()
        asked += 1
    while not patience.is_over():
        now += TICK
        asked += 1
    assert asked == 10 / TICK
    assert patience.tick == 0
