"""Retries: passing errors leave calls out for a while, what always fails is ended, by name."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pytest

from hookstats.stats.retries import LONGEST_PAUSE, TICK, TRIES, Patience, Retries


def tried(retries: Retries, calls: int, fails: Callable[[int], BaseException | None]) -> list[int]:
    """Which of so many calls were made; `fails` says with what error, if any."""
    made = []
    for i in range(calls):
        if retries.is_due("key"):
            made.append(i)
            if (error := fails(i)) is None:
                retries.worked("key")
            else:
                retries.failed("key", "it", error, "it is ended")
    return made


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught]


def test_an_error_that_passes_is_told_of_when_it_comes_and_when_it_is_gone() -> None:
    failures: dict[str, str] = {}
    with pytest.warns(RuntimeWarning) as caught:
        made = tried(Retries(failures), 12, lambda i: OSError("full") if i < 4 else None)
    assert made == [0, 2, 5, 6, 7, 8, 9, 10, 11]
    assert told(caught) == [
        "hookstats: it failed: OSError: full; it is called again at later steps",
        "hookstats: it works again; calls that it missed: 5",
    ]
    assert failures == {"it": "OSError: full; 5 calls missed; it works again"}


def test_of_what_fails_now_and_then_there_are_two_warnings_and_the_count_goes_on() -> None:
    failures: dict[str, str] = {}
    with pytest.warns(RuntimeWarning) as caught:
        tried(Retries(failures), 300, lambda i: ValueError("odd") if i % 5 == 0 else None)
    assert len(caught) == 2
    assert failures == {"it": "ValueError: odd; 120 calls missed; it works again"}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit("no")])
def test_what_always_fails_is_ended(error: BaseException) -> None:
    failures: dict[str, str] = {}
    with pytest.warns(RuntimeWarning) as caught:
        made = tried(Retries(failures), 2000, lambda i: error)
    assert len(made) == TRIES
    assert made[:4] == [0, 2, 5, 10]
    kind = type(error).__name__
    assert told(caught) == [
        f"hookstats: it failed: {kind}: no; it is called again at later steps",
        f"hookstats: it failed: {kind}: no, 8 times in a row; it is ended",
    ]
    assert failures == {"it": f"{kind}: no, 8 times in a row; it is ended; 2000 calls missed"}


@pytest.mark.parametrize("error", [MemoryError("full"), ConnectionError("down")])
def test_errors_of_the_system_end_nothing(error: Exception) -> None:
    failures: dict[str, str] = {}
    retries = Retries(failures)
    with pytest.warns(RuntimeWarning, match="is called again") as caught:
        made = tried(retries, 5000, lambda i: error)
    assert len(caught) == 1
    assert made[-1] - made[-2] == LONGEST_PAUSE + 1
    with pytest.warns(RuntimeWarning, match=r"it works again; calls that it missed: 5\d\d\d"):
        assert len(tried(retries, 2 * LONGEST_PAUSE, lambda i: None)) >= LONGEST_PAUSE


def test_things_of_other_keys_are_called_as_before() -> None:
    retries = Retries({})
    with pytest.warns(RuntimeWarning, match="one failed"):
        retries.failed("one", "one", OSError(), "ended")
    assert not retries.is_due("one")
    assert retries.is_due("other")
    retries.worked("other")


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
