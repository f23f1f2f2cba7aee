"""Which elements a sampled histogram counts, and how sampled histograms merge.

Of every k consecutive units of 16 elements in logical order one is counted, chosen by its place and
the step (csrc/core/sample.h does the same, to the bit).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.arguments import check_integer
from hookstats.stats.lazy_torch import torch

Sample = int | Literal["auto"]
"""Of how many units one is counted: 1 for all of them. "auto" leaves tensors of fewer than 131,072
elements whole, and counts 65,536 to 131,072 elements of larger ones."""

UNIT = 16
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
        every: of how many units one is counted; 0 is "auto".
        masked: how many leading dimensions of `x` a mask covers.
    """
    sizes = [1 if stride == 0 else n for n, stride in zip(x.shape, x.stride(), strict=True)]
    sizes[:masked] = x.shape[:masked]
    if channel_dim is not None:
        sizes[channel_dim] = x.shape[channel_dim]
    elements = int(np.prod(sizes, dtype=np.int64))
    if every == 1:
        return torch.ones((), dtype=torch.bool, device="cpu").expand(x.shape)
    if not every:
        every = min(max(1, elements // AUTO_ELEMENTS), _MOST)
    mask = torch.from_numpy(_chosen(elements, every, step)).view(sizes)
    return mask.expand(x.shape)


def _chosen(elements: int, every: int, step: int) -> NDArray[np.bool_]:
    units = -(-elements // UNIT)
    first = np.arange(0, units, every, dtype=np.uint64)
    choice = np.minimum(np.uint64(every), np.uint64(units) - first)
    mask = np.zeros(units, bool)
    mask[first + (_fractions(len(first), step) * choice >> np.uint64(32))] = True
    return np.repeat(mask, UNIT)[:elements]


def _fractions(groups: int, step: int) -> NDArray[np.uint64]:
    """Where in its group the unit of each group lies, in 2**-32 of the group."""
    u = np.uint64
    seed = _mix(np.array([step & _LOW], u) ^ _mix(np.array([step >> 32 & _LOW], u)))[0]
    group = np.arange(groups, dtype=u) & u(_LOW)
    turn = _mix(((group >> u(3)) + u(0x9E3779B9)) & u(_LOW) ^ seed)
    r, a = group & u(7), u(1) + (turn * u(7) >> u(32))
    # The order of eight groups is r -> a r + b in the field of 8 elements, with random a and b.
    a2 = a << u(1) ^ (a >> u(2)) * u(11)
    a4 = a2 << u(1) ^ (a2 >> u(2)) * u(11)
    product = (r & u(1)) * a ^ (r >> u(1) & u(1)) * a2 ^ (r >> u(2)) * a4
    fractions: NDArray[np.uint64] = (product ^ turn & u(7)) << u(29) | _mix(group ^ seed) >> u(3)
    return fractions


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of MurmurHash3, of numbers below 2**32."""
    u = np.uint64
    h = (h ^ h >> u(16)) * u(0x85EBCA6B) & u(_LOW)
    h = (h ^ h >> u(13)) * u(0xC2B2AE35) & u(_LOW)
    mixed: NDArray[np.uint64] = h ^ h >> u(16)
    return mixed


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
