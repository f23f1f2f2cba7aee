"""Runs that are continued at random: by other ranks, from other steps, after kills."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.commands import call
from support.samples import BINS, CHANNEL_BINS, assert_same, sample

from hookstats import open_run
from hookstats.records.ranks import Merger
from hookstats.runs.run import Run
from hookstats.runs.writer import RunWriter

RANKS = 3


class Training:
    """Sessions that write a run, and the steps of each rank that are to be valid."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.out = folder / "run-0"
        self.valid: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}
        self._folder = folder
        self._copies = 0

    def session(self, number: int) -> None:
        """Some ranks go on from some step, one or the other only until it is killed."""
        ranks = self.chance.sample(range(RANKS), self.chance.randint(1, RANKS))
        last = max((max(steps) for steps in self.valid.values() if steps), default=-1)
        begin, every = self.chance.choice([0, 3, 5, last + 1]), self.chance.choice([1, 1, 2, 3])
        steps = [s for s in range(begin, begin + 6 * every) if s % every == 0]
        if self.chance.random() < 0.4:
            steps += steps[self.chance.randrange(len(steps)) :]  # back to a checkpoint
        written = {rank: self._write(rank, number, steps) for rank in ranks}
        of_any = [min(each) for each in written.values() if each]
        for rank in set(self.valid) - {rank for rank, each in written.items() if each}:
            self.valid[rank] = [s for s in self.valid[rank] if s < min(of_any, default=1 << 60)]

    def _write(self, rank: int, number: int, steps: list[int]) -> list[int]:
        """The steps that came onto the disk."""
        at_once = self.chance.random() < 0.5  # a part a step
        writer = RunWriter(
            self.out,
            {"bins": BINS, "channel_bins": CHANNEL_BINS},
            rank=rank,
            append=True,
            world={"size": RANKS, "started": f"2026-{number:02d}"},
            seconds_per_part=0 if at_once else 1e9,
            locked=False,
        )
        is_killed = self.chance.random() < 0.4
        kept = steps[: self.chance.randint(0, len(steps))] if is_killed else steps
        for step in kept:
            writer.write(sample(step, rank))
        if is_killed:
            writer.flush()
            if len(kept) < len(steps):
                writer.write(sample(steps[len(kept)], rank))
            self._copies += 1
            shutil.copytree(self.out, copy := self._folder / f"run-{self._copies}")
            self.out = copy
            kept = steps[: len(kept) + at_once]
        else:
            writer.close()
        for step in kept:
            self.valid[rank] = [*(s for s in self.valid[rank] if s < step), step]
        return kept


def check(run: Run, valid: dict[int, list[int]]) -> None:
    assert {rank: run.of_rank(rank).steps for rank in run.ranks} == {
        rank: steps for rank, steps in valid.items() if rank in run.ranks
    }
    assert run.steps == sorted({step for steps in valid.values() for step in steps})
    for step in run.steps:
        ranks = [rank for rank, steps in valid.items() if step in steps]
        assert run.ranks_of(step) == ranks
        merged = Merger()([sample(step, rank) for rank in ranks])
        for key, stats in merged.items():
            assert run[step][key].tallies.equal(stats.tallies)
            np.testing.assert_allclose(run[step][key].mean, stats.mean, rtol=1e-12)
        for rank in ranks:
            assert_same(run.of_rank(rank)[step], sample(step, rank))
    rows = [(row["step"], row["site"], row["kind"]) for row in run.table().to_pylist()]
    assert sorted(rows) == sorted((step, *key) for step in run.steps for key in run[step])
    series = run.series() if run.steps else {}
    assert {int(s) for one in series.values() for s in one.steps} == set(run.steps)


@pytest.mark.check
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 4))]
)
def test_what_is_valid_is_there_and_nothing_else(tmp_path: Path, seed: int) -> None:
    training = Training(tmp_path, seed)
    for number in range(1, 5):
        training.session(number)
    run = open_run(training.out)
    check(run, training.valid)
    if run.steps:
        assert call("merge", training.out, "-o", tmp_path / "merged").code == 0
        assert open_run(tmp_path / "merged").steps == run.steps
        assert call("compare", run.path, tmp_path / "merged", "--rtol", "1e-12").code == 0
