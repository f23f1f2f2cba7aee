"""The arena: states of many sites, closed and read out step by step."""

from __future__ import annotations

import gc
import pkgutil
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.expected import assert_stats
from support.forks import in_child
from torch import Tensor

from hookstats.arena.arena import Accumulator, Arena
from hookstats.arena.snapshot import Snapshot
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import Bins, LinearBins, LogBins

LINEAR = LinearBins(16, -2.0, 2.0)


def accumulator(arena: Arena, name: str, channels: int) -> Accumulator:
    info = SiteInfo(name, "output", channels, 1, (4, channels), "float32")
    return arena.accumulator(info, torch.device("cpu"))


def close(arena: Arena, step: int = 0) -> StepRecord:
    snapshot = arena.swap()
    record = snapshot.to_record(step, 0)
    snapshot.release()
    return record


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
    snapshot = arena.swap()
    site.fold(second, 1)
    late = accumulator(arena, "late", 3)
    late.fold(third, 1)
    record = snapshot.to_record(0, 0)
    assert list(record) == [("a", "output")]
    assert_stats(record["a", "output"], [first], 1)
    snapshot.release()
    record = close(arena, 1)
    assert_stats(record["a", "output"], [second], 1)
    assert_stats(record["late", "output"], [third], 1)


def test_what_is_said_of_a_site_is_of_its_step() -> None:
    arena = Arena(None, None)
    site = accumulator(arena, "a", 3)
    site.fold(torch.randn(4, 3), 1)
    snapshot = arena.swap()
    site.info = site.info._replace(shape=(9, 3))
    assert snapshot.to_record(0, 0).sites[0].shape == (4, 3)
    snapshot.release()
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


def test_swap_reads_the_step_before_out_if_nobody_did() -> None:
    arena = Arena(LogBins(), None)
    site = accumulator(arena, "a", 1)
    tensors, snapshots = [torch.randn(4, 1) for _ in range(5)], []
    for x in tensors:
        site.fold(x, 1)
        snapshots.append(arena.swap())
    assert arena.stalls == 0
    for step, (snapshot, x) in enumerate(zip(snapshots, tensors, strict=True)):
        assert_stats(snapshot.to_record(step, 0)["a", "output"], [x], 1)
        snapshot.release()


@pytest.mark.parametrize("function", ["Shelf.take", "take_"])
def test_an_interrupt_when_the_states_are_out_of_their_rows_loses_nothing(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the operator is done, before anyone has what the operator returns."""
    arena = Arena(LogBins(), LINEAR)
    arena.most_ahead = 0  # or the swap would take the step out
    site = accumulator(arena, "a", 1)
    site.fold(torch.ones(4, 1), 1)
    snapshot = arena.swap()
    name = f"hookstats.arena.shelf.{function}"
    take = pkgutil.resolve_name(name)

    def cut(*args: Any) -> Any:
        take(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(name, cut)
        with pytest.raises(KeyboardInterrupt):
            snapshot.take_out()
    assert not snapshot.is_free.is_set()
    assert_stats(snapshot.to_record(0, 0)["a", "output"], [torch.ones(4, 1)], 1)
    assert snapshot.is_free.is_set()
    site.fold(torch.ones(2, 1), 1)
    assert (arena.swap().to_record(1, 0)["a", "output"].count == 2).all()


def test_swap_waits_where_too_many_steps_wait() -> None:
    arena = Arena(None, None)
    arena.most_ahead = 2
    site = accumulator(arena, "a", 1)
    waiting = deque(arena.swap() for _ in range(3))
    assert arena.stalls == 0
    swapped: list[Snapshot] = []
    thread = threading.Thread(target=lambda: swapped.append(arena.swap()))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    x = torch.randn(4, 1)
    site.fold(x, 1)  # still of the step that waits to be closed
    waiting.popleft().to_record(0, 0)
    thread.join()
    assert arena.stalls == 1
    assert_stats(swapped[0].to_record(1, 0)["a", "output"], [x], 1)


def test_after_some_seconds_steps_are_lost() -> None:
    arena = Arena(LogBins(), None)
    arena.most_ahead, arena.patience = 1, 0.2
    site = accumulator(arena, "a", 1)
    kept: deque[tuple[int, Snapshot]] = deque()
    tensors, lost, seconds = [torch.randn(4, 1) for _ in range(6)], [], []

    def read_one() -> None:
        i, snapshot = kept.popleft()
        assert_stats(snapshot.to_record(i, 0)["a", "output"], [tensors[i]], 1)

    for i, x in enumerate(tensors):
        if i >= 4:
            read_one()
        site.fold(x, 1)
        began = time.monotonic()
        arena.hand_over(lambda s, i=i: kept.append((i, s)), lambda i=i: lost.append(i))
        seconds.append(time.monotonic() - began)
    assert lost == [2, 3]
    assert seconds[2] >= 0.2
    assert seconds[3] < 0.2  # training has waited long enough
    assert [i for i, _ in kept] == [4, 5]
    read_one()
    read_one()


@pytest.mark.parametrize("interrupts", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_an_interrupt_closed_is_submitted(interrupts: int, late: bool) -> None:
    """late: whether interrupts come when the step was submitted."""
    arena = Arena(None, None)
    site, x = accumulator(arena, "a", 1), torch.randn(4, 1)
    site.fold(x, 1)
    steps: list[tuple[int, Snapshot]] = []
    left = iter(range(interrupts))

    def submit(step: int, snapshot: Snapshot) -> None:
        if late:
            steps.append((step, snapshot))
        if next(left, None) is not None:
            raise KeyboardInterrupt
        if not late:
            steps.append((step, snapshot))

    with pytest.raises(KeyboardInterrupt):
        arena.hand_over(partial(submit, 0), lambda: None)
    site.fold(x, 1)
    site.fold(x, 1)
    arena.hand_on()
    first = dict(steps)[0]
    assert all(snapshot is first for _, snapshot in steps)  # who reads them knows it again
    assert_stats(first.to_record(0, 0)["a", "output"], [x], 1)
    steps.clear()
    arena.hand_over(partial(submit, 1), lambda: None)
    (step,) = steps
    assert step[0] == 1
    assert_stats(step[1].to_record(1, 0)["a", "output"], [x, x], 1)


def test_a_lost_snapshot_gives_its_buffer_back() -> None:
    arena = Arena(None, None)
    site = accumulator(arena, "a", 1)
    site.fold(torch.randn(4, 1), 1)
    arena.swap()
    gc.collect()
    assert len(close(arena)) == 0
    assert len(close(arena)) == 0
    assert arena.stalls == 0


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
            with arena.lock:
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


def test_a_child_forked_while_a_buffer_is_read_out_can_close_steps() -> None:
    arena = Arena(None, None)
    snapshot = arena.swap()
    in_child(arena.swap)  # in the parent, this would wait for the snapshot
    snapshot.release()
