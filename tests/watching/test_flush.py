"""Flusher: what is submitted is recorded, whatever fails, hangs or interrupts."""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.closed import Closed
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.stats import retries
from hookstats.watching.flush import Flusher
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def eventually(condition: Callable[[], object]) -> bool:
    """Whether `condition` comes true within some seconds."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def record(flusher: Flusher, *steps: Closed, first: int = 0) -> None:
    """Submit `steps`, numbered from `first`, and wait for them."""
    for step, closed in enumerate(steps, first):
        flusher.submit(closed, step)
    flusher.drain()


def test_steps_reach_latest_the_writer_and_every_sink_in_order(tmp_path: Path) -> None:
    one: list[StepRecord] = []
    two: list[StepRecord] = []
    flusher = Flusher(RunWriter(tmp_path, HEADER), [one.append, two.append])
    assert flusher.latest is None
    steps = [Closed() for _ in range(20)]
    record(flusher, *steps)
    assert [closed.released for closed in steps] == [1] * 20
    assert {closed.thread for closed in steps} == {"hookstats-flush"}
    assert flusher.latest is one[-1]
    assert [record.step for record in one] == [record.step for record in two] == list(range(20))
    run = open_run(tmp_path)
    assert run.steps == list(range(20))
    assert_same(run[7], sample(7))
    flusher.close({"sites": 1})
    assert run.coverage == {"sites": 1}
    assert flusher.failures == {}


def test_the_thread_lives_from_the_first_step_to_close() -> None:
    before = threading.enumerate()
    flusher = Flusher(None)
    flusher.drain()
    assert threading.enumerate() == before
    flusher.submit(Closed(), 0)
    (thread,) = set(threading.enumerate()) - set(before)
    assert (thread.name, thread.daemon) == ("hookstats-flush", True)
    for _ in range(2):
        flusher.close()
        flusher.drain()
        assert threading.enumerate() == before
    assert flusher.latest is not None
    with pytest.raises(ValueError, match="step = 1: the flusher is closed"):
        flusher.submit(Closed(), 1)


def test_closing_before_any_step_closes_the_writer(tmp_path: Path) -> None:
    flusher = Flusher(RunWriter(tmp_path, HEADER))
    flusher.close({"sites": 0})
    flusher.close({"again": 1})
    assert open_run(tmp_path).coverage == {"sites": 0}


def test_submit_does_not_wait_for_the_step_before() -> None:
    go = threading.Event()
    flusher = Flusher(None)
    steps = [Closed(wait=go), Closed(), Closed()]
    for step, closed in enumerate(steps):
        flusher.submit(closed, step)
    assert flusher.latest is None
    go.set()
    flusher.drain()
    assert flusher.latest is not None
    assert flusher.latest.step == 2
    flusher.close()


def test_buffers_are_given_back_before_slow_sinks(tmp_path: Path) -> None:
    go = threading.Event()
    flusher = Flusher(None, [lambda record: go.wait(20)])
    closed = Closed()
    flusher.submit(closed, 0)
    assert eventually(lambda: closed.released and flusher.latest)
    go.set()
    flusher.close()


def test_a_finished_step_is_written_although_no_other_follows(tmp_path: Path) -> None:
    flusher = Flusher(RunWriter(tmp_path, HEADER, seconds_per_part=0.05))
    flusher.submit(Closed(), 3)
    assert eventually(lambda: open_run(tmp_path).steps == [3])
    flusher.close()


def test_draining_need_not_end_a_part(tmp_path: Path) -> None:
    flusher = Flusher(RunWriter(tmp_path, HEADER))
    for step in range(3):
        flusher.submit(Closed(), step)
        flusher.drain(disk=False)
        assert flusher.latest is not None
        assert flusher.latest.step == step
    assert open_run(tmp_path).steps == []
    flusher.close()
    assert len(list((tmp_path / "tensors").iterdir())) == 1


def test_a_sink_that_always_raises_is_disabled_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "TRIES", 3)
    calls: list[int] = []
    seen: list[int] = []

    def bad_sink(record: StepRecord) -> None:
        calls.append(record.step)
        raise SystemExit("no")

    flusher = Flusher(
        RunWriter(tmp_path, HEADER), [bad_sink, lambda record: seen.append(record.step)]
    )
    with pytest.warns(RuntimeWarning) as w:
        record(flusher, *(Closed() for _ in range(8)))
    flusher.close()
    assert "bad_sink failed: SystemExit: no; it is called again" in str(w[0].message)
    assert "SystemExit: no, 3 times in a row; the sink is disabled" in str(w[1].message)
    assert len(w) == 2
    assert calls == [0, 2, 5]
    assert seen == [*range(8)]
    assert open_run(tmp_path).steps == [*range(8)]
    assert list(flusher.failures) == [
        "sink test_a_sink_that_always_raises_is_disabled_and_the_others_go_on.<locals>.bad_sink"
    ]


class ClosedSink:
    """Takes records until `broken_from`, and remembers the thread that closed it."""

    def __init__(self, broken_from: int = 1000) -> None:
        self.broken_from = broken_from
        self.events: list[object] = []

    def __call__(self, record: StepRecord) -> None:
        if record.step >= self.broken_from:
            raise ValueError("broken")
        self.events.append(record.step)

    def close(self) -> None:
        self.events.append(threading.current_thread().name)


def test_sinks_are_closed_once_after_their_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "TRIES", 3)
    whole, broken, without = ClosedSink(), ClosedSink(broken_from=1), []
    flusher = Flusher(None, [whole, broken, without.append])
    with pytest.warns(RuntimeWarning) as w:
        record(flusher, *(Closed() for _ in range(8)))
    assert "broken, 3 times in a row; the sink is disabled" in str(w[1].message)
    assert broken.events == [0, "hookstats-flush"]
    flusher.close()
    flusher.close()
    assert whole.events == [*range(8), "hookstats-flush"]
    assert broken.events == [0, "hookstats-flush"]
    unused = ClosedSink()
    Flusher(None, [unused]).close()
    assert unused.events == [threading.current_thread().name]


def test_a_sink_that_cannot_be_closed_is_warned_of(tmp_path: Path) -> None:
    class Bad(ClosedSink):
        def close(self) -> None:
            raise OSError("full")

    good = ClosedSink()
    flusher = Flusher(RunWriter(tmp_path, HEADER), [Bad(), good])
    record(flusher, Closed())
    with pytest.warns(RuntimeWarning, match="closing sink .*Bad.* failed: OSError: full"):
        flusher.close({"sites": 1})
    assert good.events == [0, "hookstats-flush"]
    assert open_run(tmp_path).coverage == {"sites": 1}


def test_a_writer_that_fails_is_disabled_and_the_sinks_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    seen: list[int] = []
    flusher = Flusher(
        RunWriter(out, HEADER, seconds_per_part=0), [lambda record: seen.append(record.step)]
    )
    record(flusher, Closed())
    out.rename(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match=r"writing to out = '.*run' failed: FileNotFound") as w:
        record(flusher, Closed(), Closed())
    flusher.close({"sites": 1})
    assert len(w) == 1
    assert seen == [0, 0, 1]
    assert open_run(tmp_path / "elsewhere").steps == [0]


def test_a_step_that_cannot_be_read_is_lost_alone() -> None:
    flusher = Flusher(None)
    steps = [Closed(), Closed(error=MemoryError("full")), Closed(error=OSError()), Closed()]
    with pytest.warns(RuntimeWarning, match="recording a step failed: MemoryError: full; ") as w:
        record(flusher, *steps)
    assert len(w) == 1
    assert [closed.released for closed in steps] == [1, 1, 1, 1]
    assert flusher.latest is not None
    assert flusher.latest.step == 3
    flusher.close()


@pytest.mark.filterwarnings("error")
def test_warnings_made_errors_do_not_reach_the_training(caplog) -> None:
    flusher = Flusher(None)
    with caplog.at_level(logging.ERROR):
        flusher.submit(Closed(error=OSError("gone")), 0)
        flusher.submit(Closed(), 1)
        flusher.close()
    assert caplog.messages == [
        "hookstats: recording a step failed: OSError: gone; the step is lost"
    ]
    assert flusher.latest is not None


def test_a_step_that_cannot_be_read_out_is_a_gap(tmp_path: Path) -> None:
    flusher = Flusher(RunWriter(tmp_path, HEADER))
    steps = [Closed(), Closed(error=MemoryError("no memory")), Closed()]
    with pytest.warns(RuntimeWarning, match="recording a step failed: MemoryError: no memory"):
        record(flusher, *steps)
    flusher.close()
    assert [closed.released for closed in steps] == [1, 1, 1]
    run = open_run(tmp_path)
    assert (run.steps, run.gaps) == ([0, 2], {1: "error"})


def test_a_sink_may_drain_and_close() -> None:
    threads: list[threading.Thread] = []

    def sink(record: StepRecord) -> None:
        threads.append(threading.current_thread())
        flusher.drain()
        flusher.close()

    flusher = Flusher(None, [sink])
    flusher.submit(Closed(), 0)
    while not threads:
        time.sleep(0.01)
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert flusher.failures == {}


def test_the_thread_outlives_what_is_thrown_into_it() -> None:
    before = set(threading.enumerate())
    flusher = Flusher(None)
    record(flusher, Closed())
    (thread,) = set(threading.enumerate()) - before
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
    with pytest.warns(RuntimeWarning, match="failed: SystemExit"):
        record(flusher, *(Closed() for _ in range(5)))
    flusher.close()
    assert flusher.latest is not None
    assert flusher.latest.step == 4


def test_an_interrupt_while_waiting_breaks_nothing(tmp_path: Path) -> None:
    go = threading.Event()
    flusher = Flusher(RunWriter(tmp_path, HEADER))
    flusher.submit(Closed(wait=go), 0)
    for wait in (flusher.drain, flusher.close, flusher.close):
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    go.set()
    flusher.close()
    assert open_run(tmp_path).steps == [0]


class Hangs:
    """A sink whose call or close, as `at` says, waits until `go`."""

    def __init__(self, at: int | str) -> None:
        self.at = at
        self.go = threading.Event()
        self.events: list[object] = []

    def __call__(self, record: StepRecord) -> None:
        self.events.append(record.step)
        if self.at == record.step:
            self.go.wait(60)

    def close(self) -> None:
        self.events.append("closed")
        if self.at == "close":
            self.go.wait(60)


@pytest.mark.parametrize("late", ["returns", "raises"])
def test_a_sink_that_hangs_is_disabled_and_the_others_go_on(late: str, tmp_path: Path) -> None:
    hangs, first, last = Hangs(at=1), ClosedSink(), ClosedSink()

    def sink(record: StepRecord) -> None:
        hangs(record)
        if late == "raises" and record.step == 1:
            raise OSError("late")

    before = set(threading.enumerate())
    flusher = Flusher(RunWriter(tmp_path, HEADER), [first, sink, last])
    flusher.patience = 0.3
    flusher.submit(Closed(), 0)
    flusher.drain()
    (stuck,) = set(threading.enumerate()) - before
    with pytest.warns(RuntimeWarning, match=r"sink .*sink failed: no return within 0.3 s") as w:
        record(flusher, *(Closed() for _ in range(6)), first=1)
    assert len(w) == 1
    assert stuck.is_alive()
    hangs.go.set()
    stuck.join(20)
    assert not stuck.is_alive()
    flusher.close({"sites": 1})
    assert set(threading.enumerate()) == before
    assert hangs.events == [0, 1]
    expected = [*range(7), "hookstats-flush"]
    assert first.events == last.events == expected
    run = open_run(tmp_path)
    assert run.steps == list(range(7))
    assert run.coverage == {"sites": 1, "failures": flusher.failures}
    assert len(flusher.failures) == 1


def test_a_sink_whose_close_hangs_ends_alone(tmp_path: Path) -> None:
    hangs, other = Hangs(at="close"), ClosedSink()
    flusher = Flusher(RunWriter(tmp_path, HEADER), [hangs, other])
    flusher.patience = 0.3
    record(flusher, Closed())
    with pytest.warns(RuntimeWarning, match=r"closing sink .*Hangs.* failed: no return within"):
        flusher.close({"sites": 1})
    assert other.events == [0, "hookstats-flush"]
    assert open_run(tmp_path).coverage == {"sites": 1}
    hangs.go.set()


def train(
    w: Watch, model: nn.Module, optimizer: torch.optim.Optimizer, *, settle: bool = False
) -> None:
    """Eight steps of training, watched to the end.

    settle: whether the sinks get all records before the watch is closed.
    """
    for _ in range(8):
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    assert not settle or w.latest.step == 7
    w.close()


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = nn.Linear(3, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_training_does_not_wait_for_a_sink_that_hangs() -> None:
    hangs = Hangs(at=1)
    seen: list[int] = []
    model = small()
    w = watch(*model, sinks=[hangs, lambda record: seen.append(record.step)], rules=())
    w._flusher.patience = 0.3
    with pytest.warns(RuntimeWarning, match="no return within"):
        train(w, *model)
    assert seen == list(range(8))
    hangs.go.set()


@pytest.mark.parametrize("by", ["step", "optimizer"])
def test_a_sink_cannot_close_steps(by: str) -> None:
    model, optimizer = small()
    seen: list[int] = []

    def sink(record: StepRecord) -> None:
        w.step() if by == "step" else optimizer.step()

    w = watch(model, optimizer, sinks=[sink, lambda record: seen.append(record.step)], rules=())
    with pytest.warns(RuntimeWarning, match=r"RuntimeError: step: called by a sink .* again at"):
        train(w, model, optimizer, settle=True)  # without hooks, an optimizer closes no steps
    assert seen == list(range(8))
    assert len(w.coverage().failures) == 1
