"""write_run(): a run of many ranks that train the same model, each with records of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hookstats import LogBins
from hookstats.records.layout import Axis, Layout, Mesh
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.runs.writer import RunWriter
from hookstats.stats.merge import merge

BATCH = 32
BINS = LogBins()
_FILLED = 40  # slots of a histogram that are not empty


def record(rank: int, sites: int, channels: int, ranks: int) -> StepRecord:
    """What a rank of data parallelism observes: numbers without a pattern, as real ones are."""
    random = np.random.default_rng(rank)
    rows = sites * channels
    moments = np.empty((rows, 5))
    moments[:, 0] = random.normal(size=rows)
    moments[:, 1] = BATCH * random.random(rows)
    moments[:, 2] = -3 - random.random(rows)
    moments[:, 3] = 3 + random.random(rows)
    moments[:, 4] = BATCH * random.random(rows)
    tallies = np.zeros((rows, 5), np.int64)
    tallies[:, 0] = BATCH
    tallies[:, 4] = random.integers(0, 5, rows)
    owners = np.repeat(np.arange(sites), channels)
    whole = merge(moments, tallies, owners, sites)
    hist = SparseCounts(
        np.arange(sites + 1, dtype=np.int64) * _FILLED,
        np.tile(np.arange(30, 30 + _FILLED, dtype=np.int32), sites),
        random.integers(1, 500, sites * _FILLED),
    )
    return StepRecord(
        step=0,
        rank=rank,
        sites=_sites(sites, channels, _layout(rank, ranks, channels)),
        observed=np.ones(sites, np.int64),
        tensors=Table(whole[0].T, whole[1].T, hist),
        channels=Table(moments.T.copy(), tallies.T.copy(), SparseCounts.empty(rows)),
        bins=BINS,
        channel_bins=None,
    )


def _layout(rank: int, ranks: int, channels: int) -> Layout:
    """As DDP has it."""
    return Layout((Mesh((Axis("dp", rank, ranks),), 0),), ("Shard(0)",), (-1, channels), None)


def _sites(sites: int, channels: int, layout: Layout) -> tuple[SiteInfo, ...]:
    shape = (BATCH, channels)
    return tuple(
        SiteInfo(f"layer{i}", "output", channels, 1, shape, "float32", layout) for i in range(sites)
    )


def write_run(out: Path, ranks: int, sites: int, channels: int) -> None:
    """One step of each rank."""
    for rank in range(ranks):
        writer = RunWriter(out, {"bins": BINS, "channel_bins": None}, rank=rank)
        writer.write(record(rank, sites, channels, ranks))
        writer.close()
