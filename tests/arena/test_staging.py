"""Steps that are staged, as those of devices other than the CPU: a full memory loses nothing.

Staging is of the host's own memory here; what is tested is what a shelf does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from support.expected import assert_stats
from torch import Tensor

from hookstats.arena import shelf
from hookstats.arena.arena import Arena
from hookstats.arena.staging import Staging
from hookstats.records.record import SiteInfo
from hookstats.stats.bins import LinearBins, LogBins


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


def staged(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> tuple[Arena, Tensor]:
    """An arena whose step must be staged, and what is in its step."""
    monkeypatch.setattr(shelf, "event", lambda device: None)
    arena, x = Arena(LogBins(), LinearBins(16, -2.0, 2.0)), torch.randn(4, 3)
    arena.small_bytes = 0
    info = SiteInfo("a", "output", 3, 1, (4, 3), "float32")
    site = arena.accumulator(info, torch.device("cpu"))
    (made,) = arena.shelves.values()
    made._staging = OnHost(memory.copy)
    site.fold(x, 1)
    return arena, x


def copies(monkeypatch: pytest.MonkeyPatch) -> int:
    memory = Memory(0)
    arena, _ = staged(memory, monkeypatch)
    arena.swap().take_out()
    return memory.asked


def test_a_full_memory_at_any_copy_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = copies(monkeypatch)
    assert asked >= 5  # moments, tallies, two histograms and what graphs counted
    for at in range(1, asked + 1):
        arena, x = staged(Memory(at), monkeypatch)
        snapshot = arena.swap()
        with pytest.raises(MemoryError, match="pinned"):
            snapshot.take_out()
        assert not snapshot.is_free.is_set()
        assert_stats(snapshot.to_record(0, 0)["a", "output"], [x], 1)
        assert snapshot.is_free.is_set()
        assert len(arena.swap().to_record(1, 0)) == 0  # nothing is left of it


def test_what_is_on_the_host_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows may be empty when an error comes after they were copied."""
    memory = Memory(0)
    arena, x = staged(memory, monkeypatch)
    snapshot = arena.swap()

    def full(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shelf, "take_", full)
        with pytest.raises(MemoryError):
            snapshot.take_out()
    asked = memory.asked
    assert_stats(snapshot.to_record(0, 0)["a", "output"], [x], 1)
    assert memory.asked == asked


@pytest.mark.parametrize(("channel_bins", "is_small"), [(None, True), (LogBins(), False)])
def test_histograms_of_channels_make_a_step_large(
    channel_bins: LogBins | None, is_small: bool
) -> None:
    arena, channels = Arena(LogBins(), channel_bins), 1000
    info = SiteInfo("a", "output", channels, 1, (2, channels), "float32")
    arena.accumulator(info, torch.device("cpu")).fold(torch.randn(2, channels), 1)
    assert arena.swap().is_small == is_small
