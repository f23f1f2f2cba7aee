"""Steps that are staged, as those of devices other than the CPU, in two buffers.

Staging is of the host's own memory here; what is tested is what a `DeviceBuffer` does with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from support.expected import assert_stats
from torch import Tensor

from hookstats.buffers import device, staging
from hookstats.buffers.closed import ClosedStep
from hookstats.buffers.double_buffer import Accumulator, DoubleBuffer
from hookstats.buffers.staging import Staging
from hookstats.kernels.backends import backend_of
from hookstats.records.record import SiteInfo
from hookstats.stats.bins import LinearBins, LogBins

CPU = torch.device("cpu")


class OnHost(Staging):
    """Copies of the host's memory, by an allocator that may fail."""

    def __init__(self, copy: Callable[[Tensor], Tensor]) -> None:
        self._copy = copy

    @contextmanager
    def work(self, behind: torch.Event | None = None) -> Iterator[None]:
        yield

    def copy(self, x: Tensor) -> Tensor:
        return self._copy(x)


class Memory:
    """An allocator of pinned memory: its `at`-th tensor does not fit."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.asked = 0

    def copy(self, x: Tensor) -> Tensor:
        self.asked += 1
        if self.asked == self.at:
            raise MemoryError("pinned")
        return x.clone()


def staged(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> tuple[DoubleBuffer, Accumulator]:
    """A double buffer whose steps must be staged, and a site of it."""
    monkeypatch.setattr(device, "event", lambda device: None)
    monkeypatch.setattr(device, "Staging", lambda device: OnHost(memory.copy))
    backend = backend_of(CPU)._replace(states_on_host=False)
    monkeypatch.setattr(device, "backend_of", lambda device: backend)
    buffers = DoubleBuffer(LogBins(), LinearBins(16, -2.0, 2.0))
    info = SiteInfo("a", "output", 3, 1, (4, 3), "float32")
    return buffers, buffers.accumulator(info, CPU)


def close(buffers: DoubleBuffer) -> ClosedStep:
    closed = buffers.close()
    assert closed is not None
    return closed


def test_a_step_is_drained_while_the_next_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, site = staged(Memory(0), monkeypatch)
    tensors = [torch.randn(4, 3) for _ in range(5)]
    site.accumulate(tensors[0], 1)
    for i, x in enumerate(tensors[1:]):
        closed = close(buffers)
        site.accumulate(x, 1)
        assert not closed.is_free
        assert_stats(closed.to_record(i, 0)["a", "output"], [tensors[i]], 1)
        assert closed.is_free
    assert buffers.stalls == 0


def test_a_full_memory_at_any_copy_loses_the_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(0)
    buffers, site = staged(memory, monkeypatch)
    close(buffers).drain()
    assert memory.asked >= 5  # moments, tallies, two histograms and what graphs counted
    x = torch.randn(4, 3)
    for at in range(1, memory.asked + 1):
        buffers, site = staged(Memory(at), monkeypatch)
        site.accumulate(x, 1)
        closed = close(buffers)
        with pytest.raises(MemoryError, match="pinned"):
            closed.to_record(0, 0)
        assert closed.is_free
        for _ in range(2):
            assert len(close(buffers).to_record(1, 0)) == 0  # nothing is left of it
        site.accumulate(x, 1)
        assert_stats(close(buffers).to_record(2, 0)["a", "output"], [x], 1)


def test_a_step_that_is_given_up_gives_its_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, site = staged(Memory(0), monkeypatch)
    x = torch.randn(4, 3)
    for end in ("released", "discarded"):
        site.accumulate(x, 1)
        closed = close(buffers)
        if end == "released":
            closed.release()
        else:
            buffers.discard(lent=True)
        with pytest.raises(RuntimeError, match="given up"):
            closed.to_record(0, 0)
        for _ in range(2):
            assert len(close(buffers).to_record(1, 0)) == 0
        site.accumulate(x, 1)
        assert_stats(close(buffers).to_record(2, 0)["a", "output"], [x], 1)
    assert buffers.stalls == 0


def test_a_close_waits_until_the_step_before_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, site = staged(Memory(0), monkeypatch)
    first = close(buffers)
    x = torch.randn(4, 3)
    site.accumulate(x, 1)
    timer = threading.Timer(0.1, first.drain)
    timer.start()
    assert_stats(close(buffers).to_record(1, 0)["a", "output"], [x], 1)
    timer.join()
    assert buffers.stalls == 1


class Stream:
    """As torch's: it keeps the stream before in itself, and refuses a second thread."""

    made: ClassVar[list[Stream]] = []

    def __init__(self, device: torch.device) -> None:
        self.is_entered = False
        self.made.append(self)

    def __enter__(self) -> None:
        assert not self.is_entered
        self.is_entered = True

    def __exit__(self, *error: object) -> None:
        self.is_entered = False


class Done:
    """An event of a device that has nothing to do."""

    def query(self) -> bool:
        return True


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """Those that are made, in order."""
    monkeypatch.setattr(Stream, "made", [])
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(staging, "event", lambda device: Done())
    return Stream.made


def test_a_stream_that_another_thread_captures_is_left_to_it(
    streams: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch has 32 streams, and gives out each of them again and again."""
    shared = Staging(CPU)
    captured = streams[:]
    backend = backend_of(CPU)._replace(is_capturing=lambda: any(s.is_entered for s in captured))
    monkeypatch.setattr(staging, "backend_of", lambda device: backend)
    for _ in range(2):
        with shared.work():
            assert [stream.is_entered for stream in streams] == [False, True]


def test_one_thread_at_a_time_is_on_the_stream(streams: list[Stream]) -> None:
    """One that drains a step, while another makes the states of a graph or discards a step."""
    shared = Staging(CPU)
    ended: list[str] = []

    def work() -> None:
        with shared.work():
            ended.append("other")

    other = threading.Thread(target=work)
    with shared.work():
        other.start()
        other.join(0.2)
        ended.append("first")
    other.join()
    assert ended == ["first", "other"]
    assert len(streams) == 1
