"""Recorder: what is submitted is recorded, whatever fails, hangs or interrupts."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.closed import Closed
from support.samples import BINS, CHANNEL_BINS, assert_same, sample
from torch import nn

from hookstats.records.record import StepRecord
from hookstats.rules import Alert, History, NonFinite, Rule
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.stats import retries
from hookstats.watching.handle import Watch
from hookstats.watching.recorder import Recorder
from hookstats.watching.watch import watch

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


def eventually(condition: Callable[[], object]) -> bool:
    """Whether `condition` comes true within some seconds."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def record(recorder: Recorder, *steps: Closed, first: int = 0) -> None:
    """Submit `steps`, numbered from `first`, and wait for them."""
    for step, closed in enumerate(steps, first):
        recorder.submit(closed, step)
    recorder.drain()


def test_steps_reach_latest_the_writer_and_every_sink_in_order(tmp_path: Path) -> None:
    one: list[StepRecord] = []
    two: list[StepRecord] = []
    recorder = Recorder(RunWriter(tmp_path, HEADER), [one.append, two.append])
    assert recorder.latest is None
    steps = [Closed() for _ in range(20)]
    record(recorder, *steps)
    assert [closed.released for closed in steps] == [1] * 20
    assert {closed.thread for closed in steps} == {"hookstats-recorder"}
    assert recorder.latest is one[-1]
    assert [record.step for record in one] == [record.step for record in two] == list(range(20))
    run = open_run(tmp_path)
    assert run.steps == list(range(20))
    assert_same(run[7], sample(7))
    recorder.close({"sites": 1})
    assert run.coverage == {"sites": 1}
    assert recorder.failures == {}


def test_a_finished_step_is_written_although_no_other_follows(tmp_path: Path) -> None:
    recorder = Recorder(RunWriter(tmp_path, HEADER, seconds_per_part=0.05))
    recorder.submit(Closed(), 3)
    assert eventually(lambda: open_run(tmp_path).steps == [3])
    recorder.close()


class ClosedSink:
    """Takes records until `broken_from`, and remembers the thread that closed it."""

    def __init__(self, broken_from: int = 1000) -> None:
        self.broken_from = broken_from
        self.events: list[object] = []

    def __call__(self, record: StepRecord) -> None:
        if record.step >= self.broken_from:
            raise SystemExit("broken")  # which no thread may end by
        self.events.append(record.step)

    def close(self) -> None:
        self.events.append(threading.current_thread().name)


def test_sinks_are_closed_once_after_their_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "TRIES", 3)
    whole, broken, without = ClosedSink(), ClosedSink(broken_from=1), []
    recorder = Recorder(RunWriter(tmp_path, HEADER), [whole, broken, without.append])
    with pytest.warns(RuntimeWarning) as w:
        record(recorder, *(Closed() for _ in range(8)))
    assert "SystemExit: broken; it is called again" in str(w[0].message)
    assert "broken, 3 times in a row; the sink is disabled" in str(w[1].message)
    assert len(w) == 2
    assert broken.events == [0, "hookstats-sink"]
    recorder.close()
    recorder.close()
    assert open_run(tmp_path).steps == [*range(8)]
    assert whole.events == [*range(8), "hookstats-sink"]
    assert broken.events == [0, "hookstats-sink"]
    unused = ClosedSink()
    Recorder(None, [unused]).close()
    assert unused.events == ["hookstats-sink"]


def test_a_sink_that_cannot_be_closed_is_warned_of(tmp_path: Path) -> None:
    class Bad(ClosedSink):
        def close(self) -> None:
            raise OSError("full")

    good = ClosedSink()
    recorder = Recorder(RunWriter(tmp_path, HEADER), [Bad(), good])
    record(recorder, Closed())
    with pytest.warns(RuntimeWarning, match="closing sink .*Bad.* failed: OSError: full"):
        recorder.close({"sites": 1})
    assert good.events == [0, "hookstats-sink"]
    assert open_run(tmp_path).coverage == {"sites": 1}


def test_a_step_that_cannot_be_read_out_is_a_gap(tmp_path: Path) -> None:
    recorder = Recorder(RunWriter(tmp_path, HEADER))
    steps = [Closed(), Closed(error=MemoryError("no memory")), Closed()]
    with pytest.warns(RuntimeWarning, match="recording a step failed: MemoryError: no memory"):
        record(recorder, *steps)
    recorder.close()
    assert [closed.released for closed in steps] == [1, 1, 1]
    run = open_run(tmp_path)
    assert (run.steps, run.gaps) == ([0, 2], {1: "error"})


def test_a_sink_may_drain_and_close() -> None:
    threads: list[threading.Thread] = []

    def sink(record: StepRecord) -> None:
        threads.append(threading.current_thread())
        recorder.drain()
        recorder.close()

    recorder = Recorder(None, [sink])
    recorder.submit(Closed(), 0)
    while not threads:
        time.sleep(0.01)
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert recorder.failures == {}


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_the_thread_outlives_what_its_reports_raise(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise self

    def show(*_: object, **__: object) -> None:
        raise error

    def sink(record: StepRecord) -> None:
        raise Silent

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        recorder = Recorder(RunWriter(tmp_path, HEADER), [sink])
        record(recorder, Closed(), Closed(error=Silent()), Closed())
        thread = recorder._thread
        record(recorder, Closed(), first=3)
        recorder.close()
    assert recorder._thread is thread
    assert open_run(tmp_path).steps == [0, 2, 3]
    assert "Silent" in recorder.failures["recording a step"]
    (of_sink,) = [why for what, why in recorder.failures.items() if what.startswith("sink")]
    assert of_sink.startswith("Silent")


def test_a_thread_that_cannot_start_yet_loses_the_steps_until_then(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    recorder = Recorder(RunWriter(tmp_path, HEADER))
    lost = "starting the recorder thread failed: can't start new thread; steps are lost until it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.warns(RuntimeWarning, match=lost):
            recorder.submit(Closed(), 0)
        recorder.submit(Closed(), 1)
        recorder.drain()
    recorder.submit(Closed(), 2)
    recorder.close()
    assert open_run(tmp_path).steps == [2]
    assert list(recorder.failures) == ["starting the recorder thread"]


@pytest.mark.filterwarnings("ignore:hookstats:RuntimeWarning")
def test_a_rule_that_hangs_is_ended_and_the_others_go_on() -> None:
    go = threading.Event()

    class Hangs(Rule):
        name = "hangs"

        def check(self, record: StepRecord, history: History) -> list[Alert]:
            go.wait(60)
            return []

    model, optimizer = small()
    w = watch(model, optimizer, rules=[Hangs(), NonFinite()])
    w._recorder.patience = 0.2
    for _ in range(3):
        model(torch.full((2, 3), torch.nan)).sum().backward()
        optimizer.step()
    began = time.monotonic()
    w.close()
    assert time.monotonic() - began < 10
    go.set()
    assert "no return within 0.2 s" in w.coverage().failures["rule 'hangs'"]
    assert {alert.rule for alert in w.alerts} == {"non-finite"}


def test_an_interrupt_while_waiting_breaks_nothing(tmp_path: Path) -> None:
    go = threading.Event()
    recorder = Recorder(RunWriter(tmp_path, HEADER))
    recorder.submit(Closed(wait=go), 0)
    for wait in (recorder.drain, recorder.close, recorder.close):
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    go.set()
    recorder.close()
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
    recorder = Recorder(RunWriter(tmp_path, HEADER), [first, sink, last])
    recorder.patience = 0.3
    recorder.submit(Closed(), 0)
    recorder.drain()
    stuck = recorder._sinks._called[1].worker.thread
    assert stuck is not None
    with pytest.warns(RuntimeWarning, match=r"sink .*sink failed: no return within 0.3 s") as w:
        record(recorder, *(Closed() for _ in range(6)), first=1)
    assert len(w) == 1
    assert stuck.is_alive()
    hangs.go.set()
    stuck.join(20)
    assert not stuck.is_alive()
    recorder.close({"sites": 1})
    assert set(threading.enumerate()) == before
    assert hangs.events == [0, 1]
    (why,) = recorder.failures.values()
    assert why.endswith("; 6 calls missed")
    expected = [*range(7), "hookstats-sink"]
    assert first.events == last.events == expected
    run = open_run(tmp_path)
    assert run.steps == list(range(7))
    assert run.coverage == {"sites": 1, "failures": recorder.failures}
    assert len(recorder.failures) == 1


def test_a_sink_whose_close_hangs_ends_alone(tmp_path: Path) -> None:
    hangs, other = Hangs(at="close"), ClosedSink()
    recorder = Recorder(RunWriter(tmp_path, HEADER), [hangs, other])
    recorder.patience = 0.3
    record(recorder, Closed())
    with pytest.warns(RuntimeWarning, match=r"closing sink .*Hangs.* failed: no return within"):
        recorder.close({"sites": 1})
    assert other.events == [0, "hookstats-sink"]
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


def train_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()


class Slow(NonFinite):
    """Takes a while for each step."""

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        time.sleep(0.1)
        yield from ()


def test_slow_rules_lose_nothing() -> None:
    model = small()
    w = watch(*model, rules=[Slow()])
    w._recorder.patience = 0.5
    for _ in range(2):  # which the recorder begins with; those after it come together
        train_a_step(*model)
    assert w.alerts == ()
    for _ in range(12):
        train_a_step(*model)
    assert w.alerts == ()
    w.close()
    assert w._recorder.failures == {}
