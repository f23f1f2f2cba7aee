"""Sampled histograms: how far they are from whole ones, and how they merge."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.sampled import chosen_blocks
from torch import Tensor
from torch.nn.functional import conv2d

from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.bins import LinearBins, LogBins, bins_from_dict
from hookstats.stats.histogram import Histogram
from hookstats.stats.sample import apportioned, chosen, merged_counts

pytestmark = pytest.mark.usefixtures("one_thread")

N = 1_000_000


def test_one_block_of_each_group_is_chosen() -> None:
    for blocks, every, step in ((1, 8, 0), (7, 8, 1), (64, 8, 2), (1000, 8, 3), (1000, 7, 1 << 40)):
        elements = 64 * blocks - 5
        found = chosen(torch.zeros(elements), every, step)
        mask = np.zeros(64 * blocks, bool)
        for block in chosen_blocks(blocks, every, step):
            mask[64 * block : 64 * block + 64] = True
        np.testing.assert_array_equal(found.numpy(), mask[:elements])
        assert len(chosen_blocks(blocks, every, step)) == math.ceil(blocks / every)


def test_blocks_follow_memory_and_skip_no_row_of_a_mask() -> None:
    x = torch.zeros(4, 6, 50)
    blocks = chosen(x, 2, 3, 1).reshape(-1)
    for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
        moved = x.permute(order)
        channel = order.index(1)
        assert torch.equal(chosen(moved, 2, 3, channel), chosen(x, 2, 3, 1).permute(order)), order
    assert torch.equal(chosen(x, 2, 3, None, 2).reshape(-1), blocks)  # a mask of [4, 6]
    last = x.to(memory_format=torch.contiguous_format).permute(0, 2, 1)  # channels first in memory
    assert chosen(last, 2, 3, 2).shape == (4, 50, 6)


def gaussian() -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(0))


def maps() -> Tensor:
    """Smooth maps, as convolutions make them of pictures."""
    noise = torch.randn(16, 1, 260, 260, generator=torch.Generator().manual_seed(1))
    smooth = conv2d(noise, torch.ones(1, 1, 11, 11) / 121)
    return smooth[:, :, :250, :250].contiguous()


def padded() -> Tensor:
    """Sequences of any length up to 512, padded with zeros; 64 values a token."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(31, 512, 64, generator=generator)
    lengths = torch.randint(1, 513, (31, 1, 1), generator=generator)
    return torch.where(torch.arange(512)[:, None] < lengths, x, 0.0)


def mostly_zero() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, generator=generator)
    return torch.where(torch.rand(N, generator=generator) < 0.99, 0.0, x)


DATA: dict[str, Callable[[], Tensor]] = {
    "gaussian": gaussian,
    "maps": maps,
    "padded": padded,
    "sorted": lambda: gaussian().sort().values,
    "mostly zero": mostly_zero,
    **{
        f"stride {2**n}": lambda n=n: torch.arange(float(N)) % 2**n / 2**n  # type: ignore[misc]
        for n in range(1, 13)
    },
}


@pytest.mark.parametrize("name", DATA)
def test_shares_are_nearly_those_of_all(name: str) -> None:
    """Whatever the step: the greatest distance of the cumulative shares is at most 1 %."""
    x = DATA[name]()
    edges = float(x.min()), float(x.max()) + 1e-3
    whole = cumulative(channel_stats(x, None, LinearBins(1024, *edges)).hist)
    for step in range(10):
        found = channel_stats(x, None, LinearBins(1024, *edges, sample=8), step=step).hist
        assert np.abs(cumulative(found) - whole).max() <= 0.01
        assert found is not None
        assert int(found.count) == x.numel()
        assert abs(int(found.counted) - x.numel() / 8) <= 64


def cumulative(hist: Histogram | None) -> NDArray[np.float64]:
    assert hist is not None
    shares: NDArray[np.float64] = hist.slot_counts[0].numpy().cumsum() / int(hist.counted)
    return shares


@pytest.mark.check
def test_any_stride_is_nearly_that_of_all() -> None:
    """Strides that are no powers of two meet the groups at random: nine in ten within 1 %."""
    blocks = 64 * np.array(chosen_blocks(N // 64, 8, 0))
    places = (blocks[:, None] + np.arange(64)).ravel()
    gaps = []
    for stride in range(2, 4097, 29):
        whole = np.bincount(np.arange(N) % stride, minlength=stride).cumsum() / N
        some = np.bincount(places % stride, minlength=stride).cumsum() / len(places)
        gaps.append(np.abs(whole - some).max())
    assert np.mean(np.array(gaps) > 0.01) < 0.1
    assert max(gaps) < 0.07


def test_bins_with_a_sample() -> None:
    for bins in (LogBins(sample=8), LinearBins(4, -1.0, 1.0, sample="auto")):
        again = bins_from_dict(bins.to_dict())
        assert again == bins
        assert again.sample == bins.sample
    assert "sample" not in LogBins().to_dict()
    assert LogBins(sample=8) == LogBins()


@pytest.mark.parametrize("sample", [0, -1, 2.5, "all", True, None, 2**20 + 1])
def test_refuses_another_sample(sample: object) -> None:
    with pytest.raises(
        ValueError, match=r'sample = .*expected an integer in 1\.\.1048576, or "auto"'
    ):
        LogBins(sample=sample)  # type: ignore[arg-type]


def test_merging_weighs_by_the_number_of_values() -> None:
    zeros, ones = torch.zeros(160_000), torch.ones(480_000)
    whole = channel_stats(zeros, None, LinearBins(2, 0.0, 1.5))
    sampled = channel_stats(ones, None, LinearBins(2, 0.0, 1.5, sample=10))
    for merged in (whole.merge(sampled), sampled.merge(whole)):
        hist = merged.hist
        assert hist is not None
        assert int(hist.count) == 640_000
        assert int(hist.counted) == 208_000
        assert hist.counts.tolist() == [[52_000, 156_000]]
        assert hist.quantile(0.24) < 0.75 <= hist.quantile(0.26)


def test_merging_what_is_sampled_alike_adds_up() -> None:
    x = gaussian()[:64_000].view(2, -1)
    of_parts = [channel_stats(part, None, LogBins(sample=8), step=3) for part in x]
    counts = [part.hist.slot_counts for part in of_parts if part.hist is not None]
    merged = of_parts[0].merge(of_parts[1]).hist
    assert merged is not None
    assert torch.equal(merged.slot_counts, counts[0] + counts[1])


def test_a_part_of_which_nothing_was_counted_weighs_nothing() -> None:
    counts = torch.tensor([[[0, 0]], [[3, 1]]])
    assert merged_counts(counts, torch.tensor([[50], [40]])).tolist() == [[3, 1]]
    assert (
        merged_counts(torch.zeros(2, 1, 2, dtype=torch.int64), torch.tensor([[5], [4]])).sum() == 0
    )


def test_apportioned() -> None:
    values = np.array([1.0, 1.0, 1.0, 0.0, 5.0, 2.5, 2.5])
    offsets, totals = np.array([0, 3, 3, 7]), np.array([5, 0, 4])
    found = apportioned(values, offsets, totals)
    assert found.tolist() == [2, 2, 1, 0, 2, 1, 1]


def test_a_tensor_of_few_elements_has_some_counted() -> None:
    for n in (1, 15, 16, 17, 100, 299, 5000):
        hist = channel_stats(torch.ones(n), None, LogBins(sample=1000), step=n).hist
        assert hist is not None
        assert 0 < int(hist.counted) <= 64
        assert not bool(hist.quantile(0.5).isnan())
