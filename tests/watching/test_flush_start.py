"""Flusher: how its thread starts, once, or later where it cannot yet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.closed import Closed
from support.samples import BINS, CHANNEL_BINS

from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.watching.flush import Flusher


def test_the_thread_starts_once_however_often_an_interrupt_has_it_started() -> None:
    failed: list[threading.ExceptHookArgs] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", failed.append)
        for _ in range(30):
            flusher, together = Flusher(None), threading.Barrier(4)

            def start(flusher: Flusher = flusher, together: threading.Barrier = together) -> None:
                together.wait()
                flusher._start_first()

            threads = [threading.Thread(target=start) for _ in range(4)]
            for thread in threads:
                thread.start()
            flusher.submit(Closed(), 0)
            flusher.drain()
            for thread in threads:
                thread.join()
            flusher.close()
    assert failed == []


def test_a_thread_that_cannot_start_yet_loses_the_steps_until_then(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    flusher = Flusher(RunWriter(tmp_path, {"bins": BINS, "channel_bins": CHANNEL_BINS}))
    lost = "starting the flush thread failed: can't start new thread; steps are lost until it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookstats.watching.flush.start_new_thread", refuse)
        with pytest.warns(RuntimeWarning, match=lost):
            flusher.submit(Closed(), 0)
        flusher.submit(Closed(), 1)
        flusher.drain()
    flusher.submit(Closed(), 2)
    flusher.close()
    assert open_run(tmp_path).steps == [2]
    assert list(flusher.failures) == ["starting the flush thread"]
