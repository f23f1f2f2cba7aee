"""The double buffer: states of many sites, closed and read out step by step."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from support.expected import assert_stats
from torch import Tensor

from hookstats.buffers.closed import ClosedStep
from hookstats.buffers.double_buffer import Accumulator, DoubleBuffer, Stuck
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import Bins, LinearBins, LogBins

LINEAR = LinearBins(16, -2.0, 2.0)


def accumulator(buffers: DoubleBuffer, name: str, channels: int) -> Accumulator:
    info = SiteInfo(name, "output", channels, 1, (4, channels), "float32")
    return buffers.accumulator(info, torch.device("cpu"))


def closed(buffers: DoubleBuffer) -> ClosedStep:
    found = buffers.close()
    assert found is not None
    return found


def close(buffers: DoubleBuffer, step: int = 0) -> StepRecord:
    return closed(buffers).to_record(step, 0)


@pytest.mark.parametrize("bins", [None, LINEAR, LogBins()])
@pytest.mark.parametrize("channel_bins", [None, LINEAR, LogBins(0)])
def test_a_step_is_what_was_accumulated(bins: Bins | None, channel_bins: Bins | None) -> None:
    buffers = DoubleBuffer(bins, channel_bins)
    channels = {"a": 3, "b": 1, "c": 7}
    sites = {name: accumulator(buffers, name, c) for name, c in channels.items()}
    seen: dict[str, list[Tensor]] = {name: [] for name in channels}
    for name in "acbacc":
        x = torch.randn(4, channels[name])
        x[0, 0] = torch.nan
        seen[name].append(x)
        sites[name].accumulate(x, 1)
    record = close(buffers, 5)
    assert (record.step, record.rank) == (5, 0)
    assert list(record) == [("a", "output"), ("c", "output"), ("b", "output")]
    assert record.observed.tolist() == [2, 3, 1]
    assert record.offsets.tolist() == [0, 3, 10, 11]
    assert (record.bins, record.channel_bins) == (bins, channel_bins)
    assert (record.hist.rows, record.rows.hist.rows) == (3, 11)
    for name, tensors in seen.items():
        assert_stats(record[name, "output"], tensors, 1)


def test_steps_do_not_mix_and_sites_without_a_tensor_are_left_out() -> None:
    buffers = DoubleBuffer(LogBins(), LINEAR)
    sites = [accumulator(buffers, name, c) for name, c in (("a", 2), ("b", 3), ("c", 4))]
    for step, chosen in enumerate(((0, 1, 2), (1,), (), (0, 2), (0, 1, 2))):
        tensors = {i: torch.randn(5, 2 + i) for i in chosen}
        for i, x in tensors.items():
            sites[i].accumulate(x, 1)
        record = close(buffers, step)
        assert list(record) == [("abc"[i], "output") for i in chosen]
        assert record.hist.rows == len(chosen)
        assert record.rows.hist.rows == len(record.moments) == sum(2 + i for i in chosen)
        for i, x in tensors.items():
            assert_stats(record["abc"[i], "output"], [x], 1)


def test_a_double_buffer_without_sites_has_empty_steps() -> None:
    record = close(DoubleBuffer(LogBins(), None))
    assert len(record) == record.hist.rows == record.rows.hist.rows == 0
    assert record.moments.shape == record.tallies.shape == (0, 5)
    assert record.offsets.tolist() == [0]


def test_a_step_is_read_while_the_next_is_filled() -> None:
    buffers = DoubleBuffer(LogBins(), None)
    site = accumulator(buffers, "a", 3)
    first, second, third = torch.randn(3, 4, 3)
    site.accumulate(first, 1)
    snapshot = closed(buffers)
    site.accumulate(second, 1)
    late = accumulator(buffers, "late", 3)
    late.accumulate(third, 1)
    record = snapshot.to_record(0, 0)
    assert list(record) == [("a", "output")]
    assert_stats(record["a", "output"], [first], 1)
    record = close(buffers, 1)
    assert_stats(record["a", "output"], [second], 1)
    assert_stats(record["late", "output"], [third], 1)


def test_what_is_said_of_a_site_is_of_its_step() -> None:
    buffers = DoubleBuffer(None, None)
    site = accumulator(buffers, "a", 3)
    site.accumulate(torch.randn(4, 3), 1)
    snapshot = closed(buffers)
    site.info = site.info._replace(shape=(9, 3))
    assert snapshot.to_record(0, 0).sites[0].shape == (4, 3)
    site.accumulate(torch.randn(9, 3), 1)
    assert close(buffers).sites[0].shape == (9, 3)


def test_many_and_large_sites_need_several_blocks() -> None:
    buffers = DoubleBuffer(LogBins(), LINEAR)
    channels = [1000] * 9 + [10_000, 1, 1] + [3] * 300
    tensors = [torch.randn(2, c) for c in channels]
    for i, x in enumerate(tensors):
        accumulator(buffers, str(i), x.shape[1]).accumulate(x, 1)
    record = close(buffers)
    assert np.diff(record.offsets).tolist() == channels
    for i in (0, 8, 9, 10, 11, 100, 311):
        assert_stats(record[str(i), "output"], [tensors[i]], 1)


def test_a_broken_step_is_discarded_and_the_next_is_exact() -> None:
    buffers = DoubleBuffer(LogBins(), LINEAR)
    site, x = accumulator(buffers, "a", 1), torch.randn(4, 1)
    for error in (KeyboardInterrupt, MemoryError):
        with suppress(error), buffers.lock, buffers.guard:
            site.accumulate(x, 1)
            raise error
        assert buffers.close() is None
        with buffers.lock, buffers.guard:
            site.accumulate(x, 1)
        assert_stats(close(buffers)["a", "output"], [x], 1)


def test_discarding_leaves_nothing() -> None:
    buffers = DoubleBuffer(LogBins(), LINEAR)
    site, x = accumulator(buffers, "a", 1), torch.randn(4, 1)
    site.accumulate(x, 1)
    buffers.discard()
    site.accumulate(x, 1)
    assert_stats(close(buffers)["a", "output"], [x], 1)


def test_a_close_waits_for_room_and_then_steps_are_lost() -> None:
    buffers = DoubleBuffer(LogBins(), None)
    buffers.patience = 0.2
    site, x = accumulator(buffers, "a", 1), torch.randn(4, 1)
    site.accumulate(x, 1)
    buffers.has_room = lambda: False
    seconds = []
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(Stuck):
            buffers.close()
        seconds.append(time.monotonic() - began)
    assert seconds[0] >= 0.2
    assert seconds[1] < 0.2  # training has waited long enough
    buffers.has_room = lambda: True
    assert_stats(close(buffers)["a", "output"], [x], 1)  # it was still open
    until = time.monotonic() + 0.05
    buffers.has_room = lambda: time.monotonic() > until
    assert len(close(buffers)) == 0
    assert buffers.stalls == 3


def test_pending_counts_the_open_step() -> None:
    buffers = DoubleBuffer(None, None)
    site = accumulator(buffers, "a", 1)
    assert buffers.pending() == 0
    site.accumulate(torch.ones(2, 1), 1)
    site.accumulate(torch.ones(2, 1), 1)
    assert buffers.pending() == 2
    close(buffers)
    assert buffers.pending() == 0


def test_state_made_in_inference_mode_can_be_updated_outside() -> None:
    buffers = DoubleBuffer(LogBins(), LINEAR)
    x = torch.randn(4, 3)
    with torch.inference_mode():
        site = accumulator(buffers, "a", 3)
        site.accumulate(x + 0, 1)
    site.accumulate(x, 1)
    assert_stats(close(buffers)["a", "output"], [x, x], 1)


def test_threads_share_a_double_buffer() -> None:
    buffers = DoubleBuffer(LogBins(), None)
    sites = [accumulator(buffers, str(i), 3) for i in range(2)]
    x = torch.randn(50, 3)

    def accumulate() -> None:
        for i in range(40):
            with buffers.lock, buffers.guard:
                sites[i % 2].accumulate(x, 1)

    threads = [threading.Thread(target=accumulate) for _ in range(4)]
    for thread in threads:
        thread.start()
    records = []
    while any(thread.is_alive() for thread in threads):
        records.append(close(buffers))
    for thread in threads:
        thread.join()
    records.append(close(buffers))
    assert sum(int(record.observed.sum()) for record in records) == 160
    assert sum(int(record.tallies[:, 0].sum()) for record in records) == 160 * x.numel()
    assert sum(int(record.hist.counts.sum()) for record in records) == 160 * x.numel()
