"""Closing and storing a step of 200 sites x 1024 channels: what the training waits for, and the
background thread's work until it is on the disk, beside plainer ways to store the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from interleave import interleave, replay, replayed
from pytest_benchmark.fixture import BenchmarkFixture
from report import Report, cell

from hookstats import LogBins, open_run
from hookstats.accumulators import Arena
from hookstats.flush import Flusher
from hookstats.records import SiteInfo, StepRecord
from hookstats.state import MOMENTS, TALLIES
from hookstats.store import RunWriter

pytestmark = replayed

SITES = 200
CHANNELS = 1024
BATCH = 16
ROUNDS = 15


class Recording:
    """An arena with a flusher; a round is one step, of the same tensors each time."""

    def __init__(self, flusher: Flusher, bins: LogBins) -> None:
        self.flusher = flusher
        self.step = 0
        self._arena = Arena(bins, None)
        generator = torch.Generator().manual_seed(0)
        self._tensors = []
        for i in range(SITES):
            kind = ("output", "grad_output")[i % 2]
            info = SiteInfo(f"layer{i // 2}", kind, CHANNELS, 1, (BATCH, CHANNELS), "float32")
            x = torch.randn(BATCH, CHANNELS, generator=generator) * 10.0 ** -(i % 7)
            x = x.relu() if i % 4 == 0 else x
            self._tensors.append((self._arena.accumulator(info, x.device), x))

    def prepare(self) -> None:
        """Fill a step, with nothing in the background."""
        self.flusher.drain()
        for accumulator, x in self._tensors:
            accumulator.fold(x, 1)

    def close_step(self) -> None:
        """What the training does at the end of a step."""
        self.flusher.submit(self._arena.swap(), self.step)
        self.step += 1

    def run(self) -> None:
        """Close the step and wait until it is on the disk."""
        self.close_step()
        self.flusher.drain()

    def check(self, expected: StepRecord) -> None:
        """Assert that the last step was stored."""
        assert self.flusher.failures == {}
        assert self.flusher.latest is not None
        assert self.flusher.latest.step == self.step - 1


class RunDirectory(Recording):
    """hookstats, every step a part of its own: the most that a step can cost."""

    def __init__(self, out: Path) -> None:
        bins = LogBins()
        writer = RunWriter(out, {"bins": bins, "channel_bins": None}, seconds_per_part=3600)
        super().__init__(Flusher(writer), bins)
        self._out = out

    def check(self, expected: StepRecord) -> None:
        super().check(expected)
        run = open_run(self._out)
        assert run.steps == list(range(self.step))
        np.testing.assert_array_equal(run[self.step - 1].tallies, expected.tallies)
        np.testing.assert_allclose(run[0].moments, expected.moments, rtol=1e-15)


class Closing(RunDirectory):
    """The part of it that the training waits for."""

    def run(self) -> None:
        self.close_step()


class Saved(Recording):
    """`torch.save` of the arrays."""

    def __init__(self, out: Path) -> None:
        super().__init__(Flusher(None, [self.save]), LogBins())
        out.mkdir()
        self._out = out

    def _path(self, record: StepRecord) -> Path:
        return self._out / f"{record.step}.pt"

    def save(self, record: StepRecord) -> None:
        arrays = (record.moments, record.tallies, *vars(record.hist).values())
        with self._path(record).open("wb") as file:
            torch.save([torch.from_numpy(array) for array in arrays], file)
            os.fsync(file.fileno())

    def check(self, expected: StepRecord) -> None:
        super().check(expected)
        assert self.flusher.latest is not None
        moments, tallies, *_ = torch.load(self._path(self.flusher.latest))
        np.testing.assert_array_equal(moments.numpy(), expected.moments)
        np.testing.assert_array_equal(tallies.numpy(), expected.tallies)


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

    def check(self, expected: StepRecord) -> None:
        Recording.check(self, expected)
        assert self.flusher.latest is not None
        table = pq.read_table(self._path(self.flusher.latest))
        mean = table["mean"].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(mean, expected.moments[:, 0])


PEERS = {
    "closing": Closing,
    "run directory": RunDirectory,
    "torch.save": Saved,
    "parquet by default": Parquet,
}


@dataclass
class Case:
    """The recordings, how long each took, round by round, and how many bytes a step has."""

    peers: dict[str, Recording]
    seconds: dict[str, list[float]]
    bytes_per_step: dict[str, int]

    def ms(self, peer: str) -> float:
        return median(self.seconds[peer]) * 1e3

    def row(self) -> dict[str, str]:
        """Its line in the report."""
        row = {"ms/step": f"{SITES} sites x {CHANNELS} channels"}
        for peer, seconds in self.seconds.items():
            row[peer] = cell(seconds, 1e3)
        for peer, size in self.bytes_per_step.items():
            row[f"{peer}, MB"] = f"{size / 1e6:.1f}"
        return row


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, report: Report) -> Iterator[Case]:
    """The recordings, measured in turn."""
    out = tmp_path_factory.mktemp("flush")
    peers: dict[str, Recording] = {name: peer(out / name) for name, peer in PEERS.items()}
    seconds = interleave(peers, least=ROUNDS, most=ROUNDS)
    for peer in peers.values():
        peer.flusher.drain()
    sizes = {
        name: sum(path.stat().st_size for path in (out / name).rglob("*") if path.is_file())
        // peers[name].step
        for name in list(PEERS)[1:]
    }
    case = Case(peers, seconds, sizes)
    report.add("closing and storing a step: until it is on the disk", case.row())
    yield case
    for peer in peers.values():
        peer.flusher.close()


@pytest.mark.parametrize("peer", PEERS)
def test_step(
    peer: str, case: Case, machine: dict[str, str | int], benchmark: BenchmarkFixture
) -> None:
    benchmark.group = "closing and storing a step"
    replay(benchmark, case.seconds[peer])
    benchmark.extra_info.update(ms_per_step=case.ms(peer), **machine)
    expected = case.peers["torch.save"].flusher.latest
    assert expected is not None
    case.peers[peer].check(expected)
    if peer == "run directory":
        assert case.ms(peer) < case.ms("parquet by default")
        assert case.bytes_per_step[peer] < min(
            case.bytes_per_step["torch.save"], case.bytes_per_step["parquet by default"]
        )
