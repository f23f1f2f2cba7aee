"""The state of a channel: its columns, its identity and its merge.

Every statistic is a column here, once; the C++ kernels keep the same columns (csrc/core/state.h).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENTS = ("mean", "m2", "min", "max", "l1")
"""Columns of `moments` (float64): m2 is the sum of squared deviations from the mean, l1 of |x|."""

TALLIES = ("count", "nan", "posinf", "neginf", "zero")
"""Columns of `tallies` (int64): count holds the finite values, zero both zeros."""

MEAN, M2, MIN, MAX, L1 = range(len(MOMENTS))
COUNT, NAN, POSINF, NEGINF, ZERO = range(len(TALLIES))

IDENTITY = (0.0, 0.0, float("inf"), float("-inf"), 0.0)
"""The moments of no values; the tallies of no values are zeros."""


def identity_moments(channels: int, device: torch.device | str = "cpu") -> Tensor:
    """float64 [channels, 5]: the moments of no values."""
    return torch.tensor(IDENTITY, dtype=torch.float64, device=device).repeat(channels, 1)


def identity_tallies(channels: int, device: torch.device | str = "cpu") -> Tensor:
    """int64 [channels, 5]: the tallies of no values."""
    return torch.zeros(channels, len(TALLIES), dtype=torch.int64, device=device)


def combine(moments: Tensor, tallies: Tensor) -> tuple[Tensor, Tensor]:
    """Merge G groups of the same C channels: [G, C, 5] twice -> [C, 5] twice, G >= 1.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), for G groups at once.
    """
    counts = tallies[..., COUNT].double()
    total = counts.sum(0)
    means = moments[..., MEAN]
    # Shifted by the largest group's mean, so that equal means stay equal to the last bit.
    shift = means.gather(0, counts.argmax(0, keepdim=True)).squeeze(0)
    offsets = torch.where(counts > 0, means - shift, 0.0)
    offset = (offsets * (counts / total.clamp(min=1))).sum(0)
    between = counts * (offsets - offset).square()
    merged = torch.stack(
        (
            shift + offset,
            moments[..., M2].sum(0) + torch.where(counts > 0, between, 0.0).sum(0),
            moments[..., MIN].amin(0),
            moments[..., MAX].amax(0),
            moments[..., L1].sum(0),
        ),
        dim=-1,
    )
    return merged, tallies.sum(0)


def merge_(moments: Tensor, tallies: Tensor, other_moments: Tensor, other_tallies: Tensor) -> None:
    """Merge the other state of the same C channels (all [C, 5]) into `moments`, `tallies`."""
    merged = combine(torch.stack((moments, other_moments)), torch.stack((tallies, other_tallies)))
    moments.copy_(merged[0])
    tallies.copy_(merged[1])
