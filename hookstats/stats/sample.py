"""Which elements a sampled histogram counts, and how sampled histograms merge.

Of every k consecutive blocks of 64 elements, in the order in which kernels walk a tensor's memory,
one is counted (csrc/core/sample.h defines the order, and does the same to the bit).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.arguments import check_integer
from hookstats.stats.lazy_torch import torch

Sample = int | Literal["auto"]
"""Of how many blocks one is counted: 1 for all of them. "auto" leaves tensors of fewer than 131,072
elements whole, and counts 65,536 to 131,072 elements of larger ones."""

BLOCK = 64
"""Elements of a block."""
AUTO_ELEMENTS = 1 << 16
_MOST = 1 << 20
_LOW = 0xFFFFFFFF


def check_sample(value: Any) -> Sample:
    """`value`, if it is "auto" or an integer in 1..2**20.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        return check_integer("sample", value, 1, _MOST)
    except ValueError as error:
        raise ValueError(f'{error}, or "auto"') from None


def every_of(sample: Sample) -> int:
    """`sample` as the `sampling` tensor of the operators has it: 0 is "auto"."""
    return 0 if sample == "auto" else sample


def chosen(
    x: torch.Tensor, every: int, step: int, channel_dim: int | None = None, masked: int = 0
) -> torch.Tensor:
    """bool, of the shape of `x`, on the CPU: the elements that count.

    What expanded dimensions repeat is one element, which counts as often as it is repeated; but
    each channel has its own elements, and so has each row of a mask.

    Args:
        every: of how many blocks one is counted; 0 is "auto".
        masked: how many leading dimensions of `x` a mask covers.
    """
    if every == 1:
        return torch.ones((), dtype=torch.bool, device="cpu").expand(x.shape)
    positions: NDArray[np.int64] = np.zeros((1,) * x.dim(), np.int64)
    elements = 1
    for d in reversed(_walk(x, channel_dim, masked)):
        along = np.arange(x.shape[d], dtype=np.int64) * elements
        positions = positions + along.reshape(-1, *(1,) * (x.dim() - d - 1))
        elements *= x.shape[d]
    if not every:
        every = min(max(1, elements // AUTO_ELEMENTS), _MOST)
    counted = _counted(-(-elements // BLOCK), every, step)
    return torch.from_numpy(counted[positions // BLOCK]).expand(x.shape)


def _walk(x: torch.Tensor, channel_dim: int | None, masked: int) -> list[int]:
    """The dimensions of `x` in the order in which kernels walk it, slowest first, without those
    that repeat elements: csrc/core/channel_view.h."""
    channel = None if channel_dim is None else channel_dim % x.dim()
    stride = x.stride()
    rows = [*range(masked)]
    others = [
        d for d in range(masked, x.dim()) if d != channel and x.shape[d] != 1 and stride[d] != 0
    ]
    others.sort(key=lambda d: -stride[d])
    if channel is None:
        return rows + others
    inner: list[int] = []
    if others and (x.shape[channel] == 1 or stride[channel] >= stride[others[-1]]):
        inner = [others.pop()]
        while others and stride[others[-1]] == stride[inner[0]] * x.shape[inner[0]]:
            inner.insert(0, others.pop())
    return [*rows, *others, channel, *inner]


def _counted(blocks: int, every: int, step: int) -> NDArray[np.bool_]:
    """bool [blocks]: which blocks count."""
    u = np.uint64
    seed = _mix(_mix(step >> 32 & _LOW) ^ step & _LOW)
    first = np.arange(0, blocks, every, dtype=u)
    # The golden ratio: it spreads what is chosen evenly, also where data repeat.
    fraction = np.arange(len(first), dtype=u) * u(0x9E3779B9) + u(seed) & u(_LOW)
    choice = np.minimum(u(every), u(blocks) - first)
    counted = np.zeros(blocks, bool)
    counted[first + (fraction * choice >> u(32))] = True
    return counted


def _mix(h: int) -> int:
    """The finalizer of MurmurHash3, of a number below 2**32."""
    h = (h ^ h >> 16) * 0x85EBCA6B & _LOW
    h = (h ^ h >> 13) * 0xC2B2AE35 & _LOW
    return h ^ h >> 16


def apportioned(
    values: NDArray[np.float64], offsets: NDArray[np.int64], totals: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Integers in proportion to the `values` of each row that add up to the row's total.

    They are rounded by largest remainders.

    Args:
        values: float64 [n], 0 or more; row r owns values ``offsets[r]:offsets[r + 1]``.
        offsets: int64 [rows + 1].
        totals: int64 [rows]; rows without values have 0.
    """
    row = np.repeat(np.arange(len(totals)), np.diff(offsets))
    sums = np.bincount(row, values, len(totals))
    rate = np.divide(totals, sums, out=np.zeros(len(totals)), where=sums > 0)
    exact = values * rate[row]
    whole = np.floor(exact).astype(np.int64)
    missing = totals - np.bincount(row, whole, len(totals)).astype(np.int64)
    order = np.lexsort((whole - exact, row))  # row by row, the largest remainder first
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - offsets[row]
    return whole + (rank < missing[row])


def merged_counts(counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The histograms [C, slots] of P parts, of each of which a sample was counted.

    Each part weighs as many values as it has, not as many as were counted of it. The result adds up
    to what was counted of all parts; it is their sum where the same share of each was counted.

    Args:
        counts: int64 [P, C, slots].
        values: int64 [P, C], the finite values of each.
    """
    counted = counts.sum(2)
    if torch.equal(counted, values):
        return counts.sum(0)
    weight = torch.where(counted > 0, values / counted.clamp(min=1), 0.0)
    estimates = (counts * weight[..., None]).sum(0)
    channels, slots = estimates.shape
    offsets = np.arange(channels + 1, dtype=np.int64) * slots
    out = apportioned(estimates.reshape(-1).numpy(), offsets, counted.sum(0).numpy())
    return torch.from_numpy(out).view(channels, slots)
