"""scaled(): a record of gradients that are multiplied; runs that are read so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.samples import assert_same, record_of
from torch import Tensor

from hookstats.records.record import StepRecord
from hookstats.records.scaled import scaled
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import Bins, LinearBins, LogBins

LINEAR = LinearBins(64, -2.0, 2.0)


def values(seed: int) -> Tensor:
    """Zeros, a constant channel and what is not finite among them."""
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[::5] = 0.0
    x[:, 1] = 0.75
    x[1, 2] = torch.nan
    return x


def record(factor: float = 1.0, step: int = 0, rank: int = 0, bins: Bins | None = None):
    """Gradients `factor` times as large, beside what does not depend on it."""
    x = values(10 * step + rank)
    return record_of(
        {
            ("layer", "output"): (x, 1),
            ("layer", "grad_output[1]"): (x * factor, 1),
            ("layer", "fake:grad_input"): (x * factor, None),
            ("layer.weight", "param_grad"): (x, 0),
            ("never", "grad_output"): (x[:0], 1),
        },
        step,
        rank,
        bins or LogBins(2),
        bins or LogBins(1, -8, 8),
    )


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_powers_of_two_are_as_if_the_values_were_multiplied(factor: float) -> None:
    assert_same(scaled(record(), factor), record(factor), rtol=1e-15)


def test_other_factors_move_values_by_a_bin_at_most() -> None:
    for bins in (LogBins(2), LinearBins(64, -8.0, 8.0)):
        mine, other = scaled(record(bins=bins), 1 / 3), record(1 / 3, bins=bins)
        np.testing.assert_allclose(mine.moments, other.moments, rtol=1e-12)
        assert np.array_equal(mine.tallies, other.tallies)
        for site in range(len(mine)):
            a, b = (np.cumsum(each.hist.dense_row(site, bins.slots)) for each in (mine, other))
            assert a[-1] == b[-1]
            # What is below a bin's end is below the next bin's.
            assert (a[:-1] <= b[1:]).all()
            assert (b[:-1] <= a[1:]).all()


def test_what_lies_beyond_all_bins_may_come_back() -> None:
    x = torch.tensor([[-9.0], [3.0], [0.5]], dtype=torch.float64)
    found = scaled(record_of({("a", "grad_output"): (x, 1)}, bins=LINEAR), 0.25)
    edges = LINEAR.edges().tolist()
    # Of the underflow -9..-2 and of the overflow 2..3 the middles, -5.5 and 2.5.
    assert [edges[slot - 1] for slot in found.hist.slots.tolist()] == [-1.375, 0.125, 0.625]


def of_ranks(out: Path, *steps: tuple[int, float | None]) -> None:
    """Two ranks; the factor that their headers have in a step is the second number."""
    for step, scale in steps:
        for rank in range(2):
            header = {"bins": LogBins(2), "channel_bins": LogBins(1, -8, 8)}
            header |= {} if scale is None else {"grad_scale": scale}
            writer = RunWriter(out, header, rank=rank, append=True)
            writer.write(record(step=step, rank=rank))
            writer.close()


def assert_scaled(found: StepRecord, seen: StepRecord, factor: float) -> None:
    assert_same(replace(found, scalars={}), replace(scaled(seen, factor), scalars={}), rtol=1e-12)


def test_a_run_is_read_by_the_factor_that_each_part_was_written_with(tmp_path: Path) -> None:
    of_ranks(tmp_path, (0, None), (1, 0.25), (2, 0.5))
    seen = open_run(tmp_path)
    run = open_run(tmp_path, grad_scale="header")
    for step, factor in ((0, 1.0), (1, 0.25), (2, 0.5)):
        assert_scaled(run[step], seen[step], factor)
        assert_scaled(run.of_rank(1)[step], seen.of_rank(1)[step], factor)
    fixed = open_run(tmp_path, grad_scale=4)
    assert_scaled(fixed[2], seen[2], 4.0)
    # Series and tables are of the same numbers, of one rank and of all.
    for one in (run, run.of_rank(1)):
        key = "layer", "grad_output[1]"
        series = one[key][key]
        expected = [one[step][key].per_tensor().max.item() for step in range(3)]
        assert series.max.tolist() == expected
        assert [int(row.sum()) for row in series.hist] == [int(n) for n in series.count]
        rows = [row for row in one.table().to_pylist() if (row["site"], row["kind"]) == key]
        assert [row["max"] for row in rows] == expected
        assert {row["rank"] for row in rows} == {one.rank}


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), True, "truth"])
def test_a_wrong_factor_is_refused(tmp_path: Path, wrong) -> None:
    of_ranks(tmp_path, (0, None))
    with pytest.raises(ValueError, match=f"grad_scale = {wrong!r}: expected a number greater"):
        open_run(tmp_path, grad_scale=wrong)
