"""differences: every difference between two records is found, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.samples import CHANNEL_BINS, Tensors, changed, record_of, sample, tensors

from hookstats.records.difference import STATISTICS, Difference, between
from hookstats.records.record import StepRecord
from hookstats.stats.bins import LinearBins
from hookstats.stats.state import TALLIES

MOMENTS = ("mean", "var", "min", "max", "l1_norm")


def found(
    a: StepRecord, b: StepRecord, rtol: float = 0.0
) -> dict[tuple[str, str, str], Difference]:
    comparison = between(a, b, rtol)
    differences = [d for site in range(len(comparison.keys)) for d in comparison.of(site)]
    assert bool(comparison) == bool(differences)
    assert all(d.relative > 0 for d in differences)
    return {(d.name, d.kind, d.statistic): d for d in differences}


def plain(a: StepRecord, b: StepRecord) -> Iterator[tuple[str, str, str]]:
    """What differs, site by site, with torch alone."""
    keys_a, keys_b = list(a), list(b)
    for key in dict.fromkeys(keys_a + keys_b):
        if key not in keys_a or key not in keys_b:
            yield *key, "site"
            continue
        i, j = keys_a.index(key), keys_b.index(key)
        if a.sites[i].dtype != b.sites[j].dtype:
            yield *key, "dtype"
        if a.observed[i] != b.observed[j]:
            yield *key, "observed"
        x, y = a[key], b[key]
        if len(x) != len(y):
            yield *key, "channels"
            continue
        for name in (*TALLIES, *MOMENTS):
            if not torch.equal(getattr(x, name).nan_to_num(7.5), getattr(y, name).nan_to_num(7.5)):
                yield *key, name
        for name, of_x, of_y in (
            ("hist", x.tensor_hist, y.tensor_hist),
            ("channel_hist", x.hist, y.hist),
        ):
            assert of_x is not None
            assert of_y is not None
            if not torch.equal(of_x.slot_counts, of_y.slot_counts):
                yield *key, name


@pytest.mark.parametrize("rtol", [0.0, 1e-3])
def test_a_record_equals_itself(rtol: float) -> None:
    comparison = between(sample(), sample(), rtol)
    assert not comparison
    assert comparison.keys == list(sample())
    assert comparison.relative.shape == (len(sample()), len(STATISTICS))


def test_records_without_sites_are_equal() -> None:
    assert not between(record_of({}), record_of({}))


@given(st.data())
def test_what_differs_is_what_a_plain_comparison_finds(data: st.DataObject) -> None:
    """Two records of one model, some sites with other values, some missing, in another order."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for _ in range(data.draw(st.integers(0, 2)) if x.numel() else 0):
            at = data.draw(st.integers(0, x.numel() - 1))
            x.view(-1)[at] = data.draw(
                st.sampled_from([0.0, 1.0, 1.0000001, math.nan, math.inf, -math.inf, 1e30, -3.0])
            )
        return x

    def side() -> StepRecord:
        keys = data.draw(st.permutations(list(tensors())))
        keys = keys[data.draw(st.integers(0, 2)) :]
        sites: Tensors = {key: (drawn(tensors()[key][0]), tensors()[key][1]) for key in keys}
        return record_of(sites)

    a, b = side(), side()
    assert set(found(a, b)) == set(plain(a, b))
    assert [key for key in between(a, b).keys if key in a] == list(a)


def test_differences_have_the_values_and_the_channel_that_differs_most() -> None:
    x = torch.arange(12.0).reshape(4, 3)  # rms of column 1: sqrt((1 + 16 + 49 + 100) / 4)
    y = x.clone()
    y[3, 1], y[3, 2] = 11.0, 11.5
    y[0, 0] = 1e-3
    differences = found(record_of({("a", "output"): (x, 1)}), record_of({("a", "output"): (y, 1)}))
    mean = differences["a", "output", "mean"]
    assert (mean.channel, mean.a, mean.b) == (1, 5.5, 5.75)
    assert mean.relative == pytest.approx(0.25 / math.sqrt((1 + 16 + 49 + 121) / 4))
    largest = differences["a", "output", "max"]
    assert largest[3:] == (1, 10.0, 11.0, pytest.approx(1 / 11))
    zero = differences["a", "output", "zero"]
    assert zero[3:] == (0, 1, 0, 0.25)
    assert differences["a", "output", "min"][3:6] == (0, 0.0, pytest.approx(1e-3))
    hist = differences["a", "output", "hist"]  # 10, 11 and 11.5 have one bin, 0 and 1e-3 have not
    assert hist[3:] == (None, 1, 1, 1 / 12)


def test_moments_may_be_apart_by_rtol_but_counts_may_not() -> None:
    x = torch.linspace(0.1, 1.0, 64).reshape(8, 8)
    a = record_of({("a", "output"): (x, 1)}, bins=None, channel_bins=None)
    b = changed(a, moments=a.moments * (1 + 1e-7))
    assert {what for _, _, what in found(a, b)} == set(MOMENTS)
    assert not between(a, b, 1e-6)
    assert between(a, b, 1e-8)
    tallies = a.tallies.copy()
    tallies[3, TALLIES.index("zero")] += 1
    (difference,) = found(a, changed(a, tallies=tallies), rtol=1.0).values()
    assert (difference.statistic, difference.channel) == ("zero", 3)


def test_the_last_bit_counts() -> None:
    a = record_of({("a", "output"): (torch.rand(8, 3), 1)})
    for column in range(5):
        moments = a.moments.copy()
        moments[1, column] = np.nextafter(moments[1, column], np.inf)
        (difference,) = found(a, changed(a, moments=moments)).values()
        assert difference.channel == 1
        assert 0 < difference.relative < 1e-15


def test_no_difference_is_too_small() -> None:
    a = record_of({("a", "output"): (torch.tensor([[1e10], [-1e10]]), 1)})
    moments = a.moments.copy()
    assert moments[0, 0] == 0.0
    moments[0, 0] = 5e-324  # over an rms of 1e10 nothing would be left
    assert ("a", "output", "mean") in found(a, changed(a, moments=moments))


def test_the_first_nan_is_no_small_difference() -> None:
    x = torch.rand(100, 2)
    y = x.clone()
    y[7, 1] = math.nan
    differences = found(record_of({("a", "output"): (x, 1)}), record_of({("a", "output"): (y, 1)}))
    assert differences["a", "output", "nan"][3:] == (1, 0, 1, math.inf)
    assert differences["a", "output", "count"].relative == 0.01
    nothing = record_of({("a", "output"): (torch.full((100, 2), math.nan), 1)})
    differences = found(record_of({("a", "output"): (x, 1)}), nothing)
    assert differences["a", "output", "mean"].relative == math.inf
    assert math.isnan(differences["a", "output", "mean"].b)


def test_sites_that_are_not_alike_are_told_apart() -> None:
    x = torch.rand(4, 3)
    a = record_of({("gone", "output"): (x, 1), ("a", "output"): (x, 1), ("b", "output"): (x, 1)})
    b = record_of(
        {
            ("b", "output"): (x.to(torch.bfloat16), 1),
            ("a", "output"): (x, 0),
            ("new", "output"): (x, 1),
        }
    )
    differences = found(a, b)
    assert differences["gone", "output", "site"][3:] == (None, True, False, math.inf)
    assert differences["new", "output", "site"][3:] == (None, False, True, math.inf)
    assert differences["a", "output", "channels"][3:] == (None, 3, 4, math.inf)
    assert differences["b", "output", "dtype"][3:6] == (None, "float32", "bfloat16")
    assert ("b", "output", "mean") in differences  # rounded
    assert ("a", "output", "mean") not in differences


def test_histograms_of_other_bins_are_not_compared() -> None:
    a, b = sample(), sample(channel_bins=LinearBins(3, -2.0, 2.0))
    assert not between(a, b)
    assert between(sample(bins=None), sample(channel_bins=None)).keys == list(a)
    assert a.channel_bins == CHANNEL_BINS


@pytest.mark.parametrize("rtol", [-1e-9, math.nan])
def test_a_bad_rtol_is_named(rtol: float) -> None:
    with pytest.raises(ValueError, match=r"rtol = (-1e-09|nan): expected 0 or more"):
        between(sample(), sample(), rtol)
