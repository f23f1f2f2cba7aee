"""Values of every dtype, scale and layout, and a check of the operator on a sample of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from support.oracle import DTYPES, INTEGERS, accumulate, check
from torch import Tensor

from hookstats.kernels import ops
from hookstats.stats.bins import LinearBins, LogBins

MEANS = (0.0, 1e2, 1e4, 1e6)
STDS = (1e-20, 1e-2, 1.0, 1e19)
LINEAR = LinearBins(16, -3.0, 3.0)
LOG = LogBins(2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_dtype(dtype: torch.dtype, *shape: int) -> Tensor:
    """Values that fit the dtype, with zeros and repeats among them."""
    values = normal(*shape)
    if dtype == torch.bool:
        return values > 0
    if dtype in INTEGERS:
        values = (values * 30).trunc()
        return (values if dtype.is_signed else values.abs()).to(dtype)
    return torch.where(values.abs() < 0.1, 0.0, values).to(dtype)


def layouts(values: Tensor) -> Iterator[tuple[Tensor, int | None]]:
    """`values` [C, n] as rows, channels last and channels first; and one channel as a whole."""
    channels, n = values.shape
    yield values, 0
    yield values.T.contiguous(), -1
    outer = next(k for k in (4, 3, 1) if n % k == 0)
    yield values.view(channels, outer, n // outer).transpose(0, 1).contiguous(), 1
    yield values[0], None


def check_sample(capability: str) -> None:
    """A part of what tests of the operators check, small enough to run once per instruction set."""
    torch.set_num_threads(1)
    assert torch.backends.cpu.get_cpu_capability() == capability
    for dtype in DTYPES:
        for n in (33, 1000):
            for x, channel_dim in layouts(of_dtype(dtype, 5, n)):
                check(
                    accumulate(ops.update_, x, channel_dim, LINEAR, LOG),
                    x,
                    channel_dim,
                    LINEAR,
                    LOG,
                )
    for mean in MEANS:
        for std in STDS:
            for x, channel_dim in layouts((normal(3, 500) * std + mean).float()):
                check(accumulate(ops.update_, x, channel_dim), x, channel_dim)
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3.0, -3.0]).repeat(40)
    for shaped, channel_dim in layouts(x.view(4, 80)):
        check(accumulate(ops.update_, shaped, channel_dim, LINEAR), shaped, channel_dim, LINEAR)
