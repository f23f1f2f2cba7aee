"""What is taken out of an arena: on several devices, interrupted at any line, and what keeps it."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.expected import assert_stats
from support.interrupts import Interrupt

from hookstats.arena import arena as arena_module
from hookstats.arena.arena import Accumulator, Arena
from hookstats.arena.taken import Taken
from hookstats.records.keys import Key
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import Bins, LinearBins, LogBins

LINEAR = LinearBins(4, -1.0, 1.0)
SLOTS = LogBins().slots


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have "cpu:1", whose tensors are on the CPU, be a device of its own."""
    monkeypatch.setattr(arena_module, "home", lambda device: device)


def sites_on(arena: Arena, *devices: str) -> list[Accumulator]:
    """Three sites of 3 channels, on these devices in turn."""
    infos = [SiteInfo(name, "output", 3, 1, (5, 3), "float32") for name in "abc"]
    return [
        arena.accumulator(info, torch.device(devices[i % len(devices)]))
        for i, info in enumerate(infos)
    ]


def parts_of(record: StepRecord, key: Key) -> list[object]:
    """All that the arrays of a record have of a site."""
    site = list(record).index(key)
    rows = slice(*record.offsets[site : site + 2].tolist())
    of_site = record.observed, *record.whole_state, record.hist.dense(slice(None), SLOTS)
    of_rows = record.moments, record.tallies, record.channel_hist.dense(slice(None), SLOTS)
    return [*(part[site] for part in of_site), *(part[rows] for part in of_rows)]


@pytest.mark.parametrize("bins", [None, LogBins()])
@pytest.mark.parametrize("channel_bins", [None, LINEAR])
def test_sites_on_several_devices_make_one_record(
    bins: Bins | None, channel_bins: Bins | None, two_devices: None
) -> None:
    records: list[list[StepRecord]] = []
    for devices in (["cpu"], ["cpu", "cpu:1"]):
        generator = torch.Generator().manual_seed(0)
        arena = Arena(bins, channel_bins)
        sites = sites_on(arena, *devices)
        made = []
        for step in range(5):
            for site in sites[step % 2 :]:  # some are not observed
                for _ in range(1 + step % 3):
                    site.fold(torch.randn(5, 3, generator=generator), 1)
            made.append(arena.swap().to_record(step, 0))
        assert len(arena.shelves) == len(devices)
        records.append(made)
    for one, other in zip(*records, strict=True):
        assert set(one) == set(other)
        for key in one:
            for mine, its in zip(parts_of(one, key), parts_of(other, key), strict=True):
                np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
def test_an_interrupt_at_any_line_loses_no_step(devices: list[str], two_devices: None) -> None:
    """Where memory of records that are gone comes again."""
    at, reached = 0, True
    while reached:
        at += 1
        arena = Arena(LogBins(), LINEAR)
        arena.most_ahead = 0  # or the swap would take the step out
        sites = sites_on(arena, *devices)
        for step in range(3):
            for site in sites:
                site.fold(torch.randn(5, 3), 1)
            arena.swap().to_record(step, 0)
        first, second = torch.randn(2, 5, 3)
        for site in sites[:2]:
            site.fold(first, 1)
        snapshot = arena.swap()
        with Interrupt(at, KeyboardInterrupt) as interruption:
            snapshot.to_record(3, 0)
        reached = interruption.reached
        record = snapshot.to_record(3, 0)
        for step in (4, 5):  # in both buffers
            for site in sites:
                site.fold(second, 1)
            later = arena.swap().to_record(step, 0)
            for name in "abc":
                assert_stats(later[name, "output"], [second], 1)
        assert len(record) == 2
        for name in "ab":
            assert_stats(record[name, "output"], [first], 1)
    assert at > 100


@pytest.mark.parametrize(
    "keep", [StepRecord.without_channels, lambda record: record.whole, lambda record: record.hist]
)
def test_what_is_kept_of_whole_tensors_keeps_no_channels(
    keep: Callable[[StepRecord], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[weakref.ref[object]] = []
    made = Taken.__init__

    def note(taken: Taken, *arguments: object) -> None:
        made(taken, *arguments)  # type: ignore[arg-type]
        memories.append(weakref.ref(taken.memory))

    monkeypatch.setattr(Taken, "__init__", note)
    arena = Arena(LogBins(), LINEAR)
    for site in sites_on(arena, "cpu"):  # where one was not observed, all is copied
        site.fold(torch.randn(5, 3), 1)
    record = arena.swap().to_record(0, 0)
    kept = keep(record)
    (memory,) = memories
    assert memory() is not None
    hist = weakref.ref(record.channel_hist.counts.base)
    del record
    assert memory() is None
    assert hist() is None
    assert kept is not None
