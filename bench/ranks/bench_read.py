"""Reading a step of 8, 64 and 256 ranks as that of the whole model, and the report of such a run,
beside pyarrow, which reads the same columns of the same files and merges nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow.parquet as pq
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from simulated import BATCH, write_run

from bench.measure import Measured, Table, measure
from bench.smoke import pick
from bench.turns import Rounds
from hookstats import StepRecord, open_run
from hookstats.runs.format import STATISTICS
from hookstats.show import page

SITES = pick(500, 6)
CHANNELS = pick(256, 8)
RANKS = pick((8, 64, 256), (2, 3))
NAMES = ("step", "rank", "site", "kind", "observed", "hist_slots", "hist_counts", *STATISTICS)

TABLE = Table(
    "reading a step of many ranks",
    "ms/rank",
    1e3,
    floor="pyarrow",
)


class Reading(ABC):
    """A way to read the step; its time is that of the processor, on one thread and another."""

    def __init__(self, run: Path, ranks: int) -> None:
        self.path = run
        self.ranks = ranks

    def prepare(self) -> None:
        """Give the last result's memory back."""
        self.result: Any = None

    def run(self) -> float:
        began = process_time()
        self.result = self.read()
        return process_time() - began

    @abstractmethod
    def read(self) -> Any:
        """The step; or of it what `check` looks at."""

    @abstractmethod
    def check(self) -> None:
        """Assert that the last result is right."""


class Merged(Reading):
    """hookstats: the record of the whole model, of a run that was just opened."""

    def read(self) -> StepRecord:
        return open_run(self.path)[0]

    def check(self) -> None:
        assert self.result.rank is None
        assert len(self.result) == SITES
        assert (self.result.tallies[:, 0] == self.ranks * BATCH).all()


class Reported(Reading):
    """hookstats: the page of the run, for which the step is read more than once."""

    def read(self) -> str:
        return page.render(open_run(self.path))

    def check(self) -> None:
        assert len(self.result) > 100_000


class Arrow(Reading):
    """pyarrow: the same columns of one part after the other; their rows are counted."""

    def read(self) -> int:
        parts = sorted((self.path / "tensors").glob("*.parquet"))
        read = partial(pq.read_table, columns=list(NAMES), use_threads=False)
        return sum(read(part).num_rows for part in parts)

    def check(self) -> None:
        assert self.result == SITES * self.ranks


PEERS: dict[str, Callable[[Path, int], Reading]] = {
    "pyarrow": Arrow,
    "hookstats": Merged,
    "report": Reported,
}


@pytest.fixture(scope="module", params=RANKS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    run = tmp_path_factory.mktemp("run") / "run"
    write_run(run, request.param, SITES, CHANNELS)
    makers = {name: partial(peer, run, request.param) for name, peer in PEERS.items()}
    title = f"{request.param} ranks, {SITES} sites x {CHANNELS} channels"
    measured = measure(TABLE, title, request.param, makers, Rounds(0, pick(3, 1)))
    files = sum(part.stat().st_size for part in (run / "tensors").iterdir())
    measured.case.facts["on the disk, MB"] = round(files / 1e6, 1)
    return measured


@pytest.mark.parametrize("peer", PEERS)
def test_read(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
