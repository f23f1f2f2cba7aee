"""The arena: states of many sites, closed and read out step by step."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from support.expected import assert_stats
from torch import Tensor

from hookstats.arena.arena import Accumulator, Arena, Stuck
from hookstats.arena.closed import ClosedStep
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import Bins, LinearBins, LogBins

LINEAR = LinearBins(16, -2.0, 2.0)


def accumulator(arena: Arena, name: str, channels: int) -> Accumulator:
    info = SiteInfo(name, "output", channels, 1, (4, channels), "float32")
    return arena.accumulator(info, torch.device("cpu"))


def closed(arena: Arena) -> ClosedStep:
    found = arena.close()
    assert found is not None
    return found


def close(arena: Arena, step: int = 0) -> StepRecord:
    return closed(arena).to_record(step, 0)


@pytest.mark.parametrize("bins", [None, LINEAR, LogBins()])
@pytest.mark.parametrize("channel_bins", [None, LINEAR, LogBins(0)])
def test_a_step_is_what_was_folded_in(bins: Bins | None, channel_bins: Bins | None) -> None:
    arena = Arena(bins, channel_bins)
    channels = {"a": 3, "b": 1, "c": 7}
    sites = {name: accumulator(arena, name, c) for name, c in channels.items()}
    seen: dict[str, list[Tensor]] = {name: [] for name in channels}
    for name in "acbacc":
        x = torch.randn(4, channels[name])
        x[0, 0] = torch.nan
        seen[name].append(x)
        sites[name].fold(x, 1)
    record = close(arena, 5)
    assert (record.step, record.rank) == (5, 0)
    assert list(record) == [("a", "output"), ("b", "output"), ("c", "output")]
    assert record.observed.tolist() == [2, 1, 3]
    assert record.offsets.tolist() == [0, 3, 4, 11]
    assert (record.bins, record.channel_bins) == (bins, channel_bins)
    assert (record.hist.rows, record.channel_hist.rows) == (3, 11)
    for name, tensors in seen.items():
        assert_stats(record[name, "output"], tensors, 1)


def test_steps_do_not_mix_and_sites_without_a_tensor_are_left_out() -> None:
    arena = Arena(LogBins(), LINEAR)
    sites = [accumulator(arena, name, c) for name, c in (("a", 2), ("b", 3), ("c", 4))]
    for step, chosen in enumerate(((0, 1, 2), (1,), (), (0, 2), (0, 1, 2))):
        tensors = {i: torch.randn(5, 2 + i) for i in chosen}
        for i, x in tensors.items():
            sites[i].fold(x, 1)
        record = close(arena, step)
        assert list(record) == [("abc"[i], "output") for i in chosen]
        assert record.hist.rows == len(chosen)
        assert record.channel_hist.rows == len(record.moments) == sum(2 + i for i in chosen)
        for i, x in tensors.items():
            assert_stats(record["abc"[i], "output"], [x], 1)


def test_an_arena_without_sites_has_empty_steps() -> None:
    record = close(Arena(LogBins(), None))
    assert len(record) == record.hist.rows == record.channel_hist.rows == 0
    assert record.moments.shape == record.tallies.shape == (0, 5)
    assert record.offsets.tolist() == [0]


def test_a_step_is_read_while_the_next_is_filled() -> None:
    arena = Arena(LogBins(), None)
    site = accumulator(arena, "a", 3)
    first, second, third = torch.randn(3, 4, 3)
    site.fold(first, 1)
    snapshot = closed(arena)
    site.fold(second, 1)
    late = accumulator(arena, "late", 3)
    late.fold(third, 1)
    record = snapshot.to_record(0, 0)
    assert list(record) == [("a", "output")]
    assert_stats(record["a", "output"], [first], 1)
    record = close(arena, 1)
    assert_stats(record["a", "output"], [second], 1)
    assert_stats(record["late", "output"], [third], 1)


def test_what_is_said_of_a_site_is_of_its_step() -> None:
    arena = Arena(None, None)
    site = accumulator(arena, "a", 3)
    site.fold(torch.randn(4, 3), 1)
    snapshot = closed(arena)
    site.info = site.info._replace(shape=(9, 3))
    assert snapshot.to_record(0, 0).sites[0].shape == (4, 3)
    site.fold(torch.randn(9, 3), 1)
    assert close(arena).sites[0].shape == (9, 3)


def test_many_and_large_sites_need_several_blocks() -> None:
    arena = Arena(LogBins(), LINEAR)
    channels = [1000] * 9 + [10_000, 1, 1] + [3] * 300
    tensors = [torch.randn(2, c) for c in channels]
    for i, x in enumerate(tensors):
        accumulator(arena, str(i), x.shape[1]).fold(x, 1)
    record = close(arena)
    assert np.diff(record.offsets).tolist() == channels
    for i in (0, 8, 9, 10, 11, 100, 311):
        assert_stats(record[str(i), "output"], [tensors[i]], 1)


def test_a_broken_step_is_discarded_and_the_next_is_exact() -> None:
    arena = Arena(LogBins(), LINEAR)
    site, x = accumulator(arena, "a", 1), torch.randn(4, 1)
    for error in (KeyboardInterrupt, MemoryError):
        with suppress(error), arena.lock, arena.guard:
            site.fold(x, 1)
            raise error
        assert arena.close() is None
        with arena.lock, arena.guard:
            site.fold(x, 1)
        assert_stats(close(arena)["a", "output"], [x], 1)


def test_discarding_leaves_nothing() -> None:
    arena = Arena(LogBins(), LINEAR)
    site, x = accumulator(arena, "a", 1), torch.randn(4, 1)
    site.fold(x, 1)
    arena.discard()
    site.fold(x, 1)
    assert_stats(close(arena)["a", "output"], [x], 1)


def test_a_close_waits_for_room_and_then_steps_are_lost() -> None:
    arena = Arena(LogBins(), None)
    arena.patience = 0.2
    site, x = accumulator(arena, "a", 1), torch.randn(4, 1)
    site.fold(x, 1)
    arena.has_room = lambda: False
    seconds = []
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Stuck):
            arena.close()
        seconds.append(time.monotonic() - began)
    assert seconds[0] >= 0.2
    assert seconds[1] < 0.2  # training has waited long enough
    arena.has_room = lambda: True
    assert_stats(close(arena)["a", "output"], [x], 1)  # it was still open
    until = time.monotonic() + 0.05
    arena.has_room = lambda: time.monotonic() > until
    assert len(close(arena)) == 0
    assert arena.stalls == 3


def test_pending_counts_the_open_step() -> None:
    arena = Arena(None, None)
    site = accumulator(arena, "a", 1)
    assert arena.pending() == 0
    site.fold(torch.ones(2, 1), 1)
    site.fold(torch.ones(2, 1), 1)
    assert arena.pending() == 2
    close(arena)
    assert arena.pending() == 0


def test_state_made_in_inference_mode_can_be_updated_outside() -> None:
    arena = Arena(LogBins(), LINEAR)
    x = torch.randn(4, 3)
    with torch.inference_mode():
        site = accumulator(arena, "a", 3)
        site.fold(x + 0, 1)
    site.fold(x, 1)
    assert_stats(close(arena)["a", "output"], [x, x], 1)


def test_threads_share_an_arena() -> None:
    arena = Arena(LogBins(), None)
    sites = [accumulator(arena, str(i), 3) for i in range(2)]
    x = torch.randn(50, 3)

    def fold() -> None:
        for i in range(40):
            with arena.lock, arena.guard:
                sites[i % 2].fold(x, 1)

    threads = [threading.Thread(target=fold) for _ in range(4)]
    for thread in threads:
        thread.start()
    records = []
    while any(thread.is_alive() for thread in threads):
        records.append(close(arena))
    for thread in threads:
        thread.join()
    records.append(close(arena))
    assert sum(int(record.observed.sum()) for record in records) == 160
    assert sum(int(record.tallies[:, 0].sum()) for record in records) == 160 * x.numel()
    assert sum(int(record.hist.counts.sum()) for record in records) == 160 * x.numel()
