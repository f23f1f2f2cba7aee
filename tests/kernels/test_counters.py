"""The counters of histograms: which elements share one, and how many it holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from support.devices import on_cuda, on_gpu
from support.oracle import accumulate, check

from hookstats.kernels import ops
from hookstats.stats import reference
from hookstats.stats.bins import LogBins

UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(on_cuda(ops.update_), id="cuda", marks=on_gpu),
    pytest.param(reference.update_, id="reference"),
]

Update = Callable[..., None]


@pytest.mark.parametrize("zeros", range(4))
@pytest.mark.parametrize("pattern", [*itertools.product((1.9, 2.1), repeat=4)], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_patterns_of_neighbouring_slots(
    update: Update, pattern: tuple[float, ...], zeros: int
) -> None:
    """A slot has four counters side by side, and zeros are left out: what is of one slot, by where
    its counters are, may be of two."""
    bins = LogBins()
    x = torch.tensor(zeros * [0.0] + 1000 * [*pattern])
    check(accumulate(update, x, None, bins), x, None, bins)


@pytest.mark.parametrize("zeros", [0, 1, 15])
@pytest.mark.parametrize("update", UPDATES)
def test_more_of_a_slot_than_16_bits_count(update: Update, zeros: int) -> None:
    """Constant but for some zeros, in rows of one channel or more."""
    bins = LogBins()
    x = torch.ones(300_000)
    x[: 16 * zeros : 16] = 0
    for shape, channel_dim in (((300_000,), None), ((100, 3000), 1), ((4, 3, 25_000), 1)):
        check(
            accumulate(update, x.view(shape), channel_dim, bins), x.view(shape), channel_dim, bins
        )


@pytest.mark.parametrize("bits", range(8))
@pytest.mark.parametrize("update", UPDATES)
def test_values_that_are_not_finite_have_no_slot(update: Update, bits: int) -> None:
    """Infinities and NaN of either sign have neighbours of the last slots as their keys."""
    bins = LogBins(subdivision_bits=bits)
    negative_nan = torch.tensor([-(1 << 22)], dtype=torch.int32).view(torch.float32).item()
    values = [3.4e38, -3.4e38, math.inf, -math.inf, math.nan, negative_nan, 1.0, 0.0]
    x = torch.tensor(4000 * values)
    assert x[5::8].signbit().all()
    check(accumulate(update, x, None, bins), x, None, bins)


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal, with zeros": lambda x: x * (x.abs() > 0.1),
    "of growing size": lambda x: x * torch.logspace(-30, 30, len(x)),
    "of two sizes": lambda x: (
        x * torch.logspace(0, 12, 2).repeat_interleave(99_999).repeat(4)[: len(x)]
    ),
    "some small, some subnormal": lambda x: (
        x * torch.tensor([1.0] * 18 + [1e-9, 1e-41]).repeat(len(x) // 20 + 1)[: len(x)]
    ),
    "mostly of two values": lambda x: torch.where(x > 1.7, x, x.sign()),
    "infinite at first": lambda x: x / (torch.arange(len(x)) >= 5000),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", UPDATES)
def test_two_elements_share_an_increment(update: Update, kind: str, dtype: torch.dtype) -> None:
    """In large tensors, those of a window of slots; the others go alone."""
    bins = LogBins()
    torch.manual_seed(0)
    x = KINDS[kind](torch.randn(700_007)).to(dtype)
    for shape, channel_dim in (((700_007,), None), ((21, 33_333), 0), ((1001, 699), 1)):
        values = x[: math.prod(shape)].view(shape)
        check(accumulate(update, values, channel_dim, bins), values, channel_dim, bins)
