"""Closing and storing a step of 200 sites x 1024 channels: what the training waits for, and the
background thread's work until it is on the disk, beside plainer ways to store the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure import Measured, Table, measure
from bench.smoke import SMOKE, pick
from bench.turns import Rounds
from hookstats import LogBins, open_run
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.runs.writer import RunWriter
from hookstats.stats.state import MOMENTS, TALLIES
from hookstats.watching.recorder import Recorder

SITES = pick(200, 8)
CHANNELS = pick(1024, 32)
BATCH = 16
ROUNDS = pick(15, 1)


class Recording:
    """A double buffer with a recorder; a round is one step, of the same tensors each time."""

    def __init__(self, recorder: Recorder, bins: LogBins) -> None:
        self.recorder = recorder
        self.step = 0
        self._buffers = DoubleBuffer(bins, None)
        generator = torch.Generator().manual_seed(0)
        self._tensors = []
        for i in range(SITES):
            kind = ("output", "grad_output")[i % 2]
            info = SiteInfo(f"layer{i // 2}", kind, CHANNELS, 1, (BATCH, CHANNELS), "float32")
            x = torch.randn(BATCH, CHANNELS, generator=generator) * 10.0 ** -(i % 7)
            x = x.relu() if i % 4 == 0 else x
            self._tensors.append((self._buffers.accumulator(info, x.device), x))

    def prepare(self) -> None:
        """Fill a step, with nothing in the background."""
        self.recorder.drain()
        for accumulator, x in self._tensors:
            accumulator.accumulate(x, 1)

    def close_step(self) -> None:
        """What the training does at the end of a step."""
        closed = self._buffers.close()
        assert closed is not None
        self.recorder.submit(closed, self.step)
        self.step += 1

    def run(self) -> None:
        """Close the step and wait until it is on the disk."""
        self.close_step()
        self.recorder.drain()

    @property
    def latest(self) -> StepRecord:
        """What was to be stored last."""
        assert self.recorder.latest is not None
        return self.recorder.latest

    def check(self) -> None:
        """Assert that the last step was recorded, and that it is right."""
        assert self.recorder.failures == {}
        assert self.latest.step == self.step - 1
        means = torch.cat([x.double().mean(0) for _, x in self._tensors])
        np.testing.assert_allclose(self.latest.moments[:, 0], means, rtol=1e-5, atol=1e-6)


class RunDirectory(Recording):
    """hookstats, every step a part of its own: the most that a step can cost."""

    def __init__(self, out: Path) -> None:
        bins = LogBins()
        writer = RunWriter(out, {"bins": bins, "channel_bins": None}, seconds_per_part=3600)
        super().__init__(Recorder(writer), bins)
        self._out = out

    def check(self) -> None:
        super().check()
        run = open_run(self._out)
        assert run.steps == list(range(self.step))
        np.testing.assert_array_equal(run[self.step - 1].tallies, self.latest.tallies)
        np.testing.assert_allclose(run[0].moments, self.latest.moments, rtol=1e-15)


class Closing(RunDirectory):
    """The part of it that the training waits for."""

    def run(self) -> None:
        self.close_step()


class Saved(Recording):
    """`torch.save` of the arrays."""

    def __init__(self, out: Path) -> None:
        super().__init__(Recorder(None, [self.save]), LogBins())
        out.mkdir()
        self._out = out

    def _path(self, record: StepRecord) -> Path:
        return self._out / f"{record.step}.pt"

    def save(self, record: StepRecord) -> None:
        arrays = (record.moments, record.tallies, *vars(record.hist).values())
        with self._path(record).open("wb") as file:
            torch.save([torch.from_numpy(array) for array in arrays], file)
            os.fsync(file.fileno())

    def check(self) -> None:
        super().check()
        moments, tallies, *_ = torch.load(self._path(self.latest))
        np.testing.assert_array_equal(moments.numpy(), self.latest.moments)
        np.testing.assert_array_equal(tallies.numpy(), self.latest.tallies)


class Parquet(Saved):
    """pyarrow's `write_table`, as it comes."""

    def save(self, record: StepRecord) -> None:
        def lists(offsets: np.ndarray, values: np.ndarray) -> pa.ListArray:
            return pa.ListArray.from_arrays(offsets.astype(np.int32), values)

        columns = {
            "site": pa.array([site.name for site in record.sites]),
            "kind": pa.array([site.kind for site in record.sites]),
            "hist_slots": lists(record.hist.offsets, record.hist.slots),
            "hist_counts": lists(record.hist.offsets, record.hist.counts),
        }
        for names, rows in ((MOMENTS, record.moments), (TALLIES, record.tallies)):
            for i, name in enumerate(names):
                columns[name] = lists(record.offsets, np.ascontiguousarray(rows[:, i]))
        with self._path(record).open("wb") as file:
            pq.write_table(pa.table(columns), file)
            os.fsync(file.fileno())

    def check(self) -> None:
        Recording.check(self)
        table = pq.read_table(self._path(self.latest))
        mean = table["mean"].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(mean, self.latest.moments[:, 0])


PEERS: dict[str, Callable[[Path], Recording]] = {
    "closing": Closing,
    "run directory": RunDirectory,
    "torch.save": Saved,
    "parquet by default": Parquet,
}
TABLE = Table(
    "closing and storing a step, until it is on the disk",
    "ms/step",
    1e3,
    floor="torch.save",
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """The recordings, measured in turn; and how many MB a step has."""
    out = tmp_path_factory.mktemp("flush")
    makers = {name: partial(peer, out / name) for name, peer in PEERS.items()}
    title = f"{SITES} sites x {CHANNELS} channels"
    measured = measure(TABLE, title, 1, makers, Rounds(0, ROUNDS))
    recordings = cast(dict[str, Recording], measured.peers)
    for name, recording in recordings.items():
        recording.recorder.drain()
        if name != "closing":
            files = (path for path in (out / name).rglob("*") if path.is_file())
            size = sum(path.stat().st_size for path in files) / recording.step
            measured.case.facts[f"{name}, MB"] = round(size / 1e6, 1)
    yield measured
    for recording in recordings.values():
        recording.recorder.close()


@pytest.mark.parametrize("peer", PEERS)
def test_step(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
    if peer == "run directory" and not SMOKE:
        assert case.case.ratio(peer, "parquet by default") < 1
        facts = case.case.facts
        assert facts["run directory, MB"] == min(facts.values())
