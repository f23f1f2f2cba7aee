"""record(): a run of many tensors and steps, as training writes it, without the training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hookstats import LogBins
from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.runs.writer import RunWriter

KINDS = ("output", "grad_output", "param_grad")
BINS = LogBins()


def record(out: Path, tensors: int, steps: int, channels: int) -> None:
    """Write a run of `tensors` x `steps`, each tensor of some channels; sizes change from step to
    step as noise does, which compresses badly."""
    rng = np.random.default_rng(0)
    base = _step(tensors, channels)
    of_row = np.repeat(np.arange(tensors), channels)
    entries = np.diff(base.hist.offsets)
    sign = np.sign(base.hist.slots - (BINS.bins // 2 + 1))
    writer = RunWriter(out, {"bins": BINS, "channel_bins": None, "model": "Noise"})
    for step in range(steps):
        octaves = rng.integers(-1, 2, tensors).repeat(entries)
        noise = rng.lognormal(0, 0.1, tensors)[of_row] * rng.lognormal(0, 0.05, len(of_row))
        powers = noise[:, None] ** np.array([1, 2, 1, 1, 1])
        slots = (base.hist.slots + 8 * sign * octaves).astype(np.int32)
        hist = SparseCounts(base.hist.offsets, slots, base.hist.counts)
        writer.write(replace(base, step=step, moments=base.moments * powers, hist=hist))
        writer.write_scalars(step, float(step), {"loss": float(3 + rng.normal())})
    writer.close()


def _step(tensors: int, channels: int) -> StepRecord:
    """One step: layers of a transformer, each larger than the one before."""
    x = torch.randn(64, channels, generator=torch.Generator().manual_seed(0))
    x[:, ::3] = x[:, ::3].relu()
    sites, moments, tallies, wholes, hists = [], [], [], [], []
    for i in range(tensors):
        name, kind = f"h.{i // 36}.layers_{i // 3 % 12}", KINDS[i % 3]
        scaled = x * 1.01**i
        stats, whole = channel_stats(scaled, 1), channel_stats(scaled, None, bins=BINS).hist
        assert whole is not None
        sites.append(SiteInfo(name, kind, channels, 1, tuple(x.shape), "float32"))
        moments.append(stats.moments.numpy())
        tallies.append(stats.tallies.numpy())
        wholes.append(stats.per_tensor())
        hists.append(whole.slot_counts.numpy())
    return StepRecord(
        step=0,
        rank=0,
        sites=tuple(sites),
        observed=np.ones(tensors, np.int64),
        tensors=Table(
            np.concatenate([one.moments.numpy() for one in wholes]).T.copy(),
            np.concatenate([one.tallies.numpy() for one in wholes]).T.copy(),
            SparseCounts.from_dense(np.concatenate(hists)),
        ),
        channels=Table(
            np.concatenate(moments).T.copy(),
            np.concatenate(tallies).T.copy(),
            SparseCounts.empty(tensors * channels),
        ),
        bins=BINS,
        channel_bins=None,
    )
