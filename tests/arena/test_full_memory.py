"""A full memory at any allocation while a closed step is read out: the step is read again, or given
up; later steps are as they were."""

from __future__ import annotations

import pytest
import torch
from support.expected import assert_stats
from support.interrupts import FullMemory

from hookstats.arena.arena import Arena
from hookstats.records.record import SiteInfo
from hookstats.stats.bins import LinearBins, LogBins

CPU = torch.device("cpu")


def read_with_full_memory(at: int, *, again: bool) -> int:
    """Have allocation `at` fail while a step is read out; returns how many there were."""
    arena = Arena(LogBins(), LinearBins(4, -1, 1))
    sites = [
        arena.accumulator(SiteInfo(name, "output", 3, 1, (5, 3), "float32"), CPU) for name in "abc"
    ]
    first, second = torch.randn(2, 5, 3)
    for site in sites[:2]:  # the third one is left out of the record
        site.fold(first, 1)
    snapshot = arena.swap()
    with FullMemory(at) as full:
        record = snapshot.to_record(0, 0)
    assert full.reached == (at > 0)
    if full.reached and not again:
        snapshot.release()
    else:
        record = snapshot.to_record(0, 0) if full.reached else record
        assert len(record) == 2
        for name in "ab":
            assert_stats(record[name, "output"], [first], 1)
    for x in (second, first):  # in both buffers
        for site in sites:
            site.fold(x, 1)
        record = arena.swap().to_record(1, 0)
        assert len(record) == 3
        for name in "abc":
            assert_stats(record[name, "output"], [x], 1)
    return full.calls


@pytest.mark.parametrize("again", [True, False])
def test_a_full_memory_at_any_allocation_of_reading(again: bool) -> None:
    allocations = read_with_full_memory(0, again=again)
    assert allocations > 5
    for at in range(1, allocations + 1):
        read_with_full_memory(at, again=again)
