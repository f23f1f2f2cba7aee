"""The state of a channel: its columns, its identity and its merge.

Every statistic is a column here, once; the C++ kernels keep the same columns (csrc/core/state.h).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTS = ("mean", "m2", "min", "max", "l1")
"""Columns of `moments` (float64): m2 is the sum of squared deviations from the mean, l1 of |x|."""

HIGHER = ("m3", "m4")
"""Columns of `moments` after these, where they are asked for: the sums of the third and fourth
powers of deviations from the mean, infinite or NaN where float64 cannot hold them."""

TALLIES = ("count", "nan", "posinf", "neginf", "zero")
"""Columns of `tallies` (int64): count holds the finite values, zero both zeros."""

MEAN, M2, MIN, MAX, L1 = range(len(MOMENTS))
M3, M4 = range(len(MOMENTS), len(MOMENTS) + len(HIGHER))
COUNT, NAN, POSINF, NEGINF, ZERO = range(len(TALLIES))

IDENTITY = (0.0, 0.0, float("inf"), float("-inf"), 0.0)
"""The moments of no values; the tallies of no values are zeros."""


def identity_moments(
    channels: int, device: torch.device | str = "cpu", higher: bool = False
) -> Tensor:
    """float64 [channels, 5], or [channels, 7] with the `higher` ones: the moments of no values."""
    row = IDENTITY + (0.0,) * len(HIGHER) if higher else IDENTITY
    return torch.tensor(row, dtype=torch.float64, device=device).repeat(channels, 1)


def identity_tallies(channels: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [channels, 5]: the tallies of no values."""
    return torch.zeros(channels, len(TALLIES), dtype=torch.int64, device=device)


def combine(moments: Tensor, tallies: Tensor) -> tuple[Tensor, Tensor]:
    """Merge G groups of the same C channels: [G, C, 5] twice -> [C, 5] twice, G >= 1.

    With the higher moments, [G, C, 7] -> [C, 7].

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), for G groups at once; Pébay, "Formulas for robust, one-pass parallel
    computation of covariances and arbitrary-order statistical moments" (2008), for the higher ones.
    """
    counts = tallies[..., COUNT].double()
    total = counts.sum(0)
    means = moments[..., MEAN]
    # Shifted by the largest group's mean, so that equal means stay equal to the last bit.
    shift = means.gather(0, counts.argmax(0, keepdim=True)).squeeze(0)
    offsets = torch.where(counts > 0, means - shift, 0.0)
    offset = (offsets * (counts / total.clamp(min=1))).sum(0)
    between = counts * (offsets - offset).square()
    columns = [
        shift + offset,
        moments[..., M2].sum(0) + torch.where(counts > 0, between, 0.0).sum(0),
        moments[..., MIN].amin(0),
        moments[..., MAX].amax(0),
        moments[..., L1].sum(0),
    ]
    if moments.shape[-1] > len(MOMENTS):
        columns += _combine_higher(moments, counts, offsets - offset)
    merged = torch.stack(columns, dim=-1)
    return merged, tallies.sum(0)


def _combine_higher(moments: Tensor, counts: Tensor, ahead: Tensor) -> list[Tensor]:
    """m3 and m4, [C] each, of groups whose means are `ahead` [G, C] of the common mean."""
    m2, m3, m4 = moments[..., M2], moments[..., M3], moments[..., M4]
    cubes = m3 + 3 * ahead * m2 + counts * ahead**3
    fourths = m4 + 4 * ahead * m3 + 6 * ahead.square() * m2 + counts * ahead**4
    some = counts > 0
    # A group of all the values keeps its bits, where 0 * inf would be NaN.
    whole = counts == counts.sum(0)
    cubes, fourths = torch.where(whole, m3, cubes), torch.where(whole, m4, fourths)
    return [torch.where(some, each, 0.0).sum(0) for each in (cubes, fourths)]


def merge_(moments: Tensor, tallies: Tensor, other_moments: Tensor, other_tallies: Tensor) -> None:
    """Merge the other state of the same C channels into `moments`, `tallies`.

    All are [C, 5]; both moments are [C, 7] where they have the higher ones.
    """
    merged = combine(torch.stack((moments, other_moments)), torch.stack((tallies, other_tallies)))
    moments.copy_(merged[0])
    tallies.copy_(merged[1])
