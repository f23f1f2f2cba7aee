"""The state of a channel: the table of its columns, their identity and their merge.

Every column of a state is defined here, once; the C++ kernels keep the same columns
(csrc/core/state.h). What is derived from the columns is in `derived`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hookstats.stats.later import torch


class Column(NamedTuple):
    """One column of a state."""

    name: str
    dtype: type[np.float64] | type[np.int64]
    """float64 in `moments`, int64 in `tallies`."""
    identity: float
    """The value of the column where there are no values."""
    merge: Literal["mean", "central", "min", "max", "sum"]
    """How the column merges: "central" are sums of powers of deviations from the mean."""
    group: Literal["core", "higher"] = "core"
    """States always have the core columns; they have the higher columns only if asked for."""


COLUMNS = (
    Column("mean", np.float64, 0.0, "mean"),
    Column("m2", np.float64, 0.0, "central"),
    Column("min", np.float64, float("inf"), "min"),
    Column("max", np.float64, float("-inf"), "max"),
    Column("l1", np.float64, 0.0, "sum"),
    Column("m3", np.float64, 0.0, "central", "higher"),
    Column("m4", np.float64, 0.0, "central", "higher"),
    Column("count", np.int64, 0, "sum"),
    Column("nan", np.int64, 0, "sum"),
    Column("posinf", np.int64, 0, "sum"),
    Column("neginf", np.int64, 0, "sum"),
    Column("zero", np.int64, 0, "sum"),
)
"""The columns of `moments` and then of `tallies`, in the order in which these have them.

m2, m3 and m4 are the sums of the second, third and fourth powers of the deviations from the mean,
infinite or NaN where float64 cannot hold them;
l1 is the sum of magnitudes; count holds the finite values, zero the zeros of either sign.
"""


def _names(dtype: type[np.float64] | type[np.int64], group: str) -> tuple[str, ...]:
    return tuple(c.name for c in COLUMNS if c.dtype == dtype and c.group == group)


MOMENTS = _names(np.float64, "core")
"""The columns that `moments` (float64) always has."""

HIGHER = _names(np.float64, "higher")
"""The columns that follow `MOMENTS` if third and fourth moments were asked for."""

TALLIES = _names(np.int64, "core")
"""The columns of `tallies` (int64)."""

MEAN, M2, MIN, MAX, L1, M3, M4 = range(len(MOMENTS + HIGHER))
COUNT, NAN, POSINF, NEGINF, ZERO = range(len(TALLIES))

IDENTITY = tuple(c.identity for c in COLUMNS[: len(MOMENTS + HIGHER)])
"""The moments of no values, the higher ones last; the tallies of no values are zeros."""


class State(NamedTuple):
    """The state that `hookstats::update_` folds tensors into: C channels of one site.

    The fields are in the order in which the operators take them.
    """

    moments: torch.Tensor
    """float64 [C, 5], or [C, 7] with the higher moments."""
    tallies: torch.Tensor
    """int64 [C, 5]."""
    counts: torch.Tensor | None
    """int64 [slots], the histogram of the whole tensor; None where none is kept."""
    bins: torch.Tensor | None
    """The descriptor of the bins of `counts`; None where there are no counts."""
    channel_counts: torch.Tensor | None
    """int64 [C, slots], the histograms of the channels; None where none are kept."""
    channel_bins: torch.Tensor | None
    """The descriptor of the bins of `channel_counts`; None where there are no such counts."""
    sampling: torch.Tensor | None = None
    """int64 [3] on the device of the tensors: the step, and `sample` of the bins of `counts` and of
    `channel_counts`, 0 for "auto"; None where all elements count."""


def moment_columns(width: int) -> tuple[Column, ...]:
    """The names of the columns of `moments`, of which there are `width`.

    Raises:
        ValueError: no state has that many.
    """
    if width not in (len(MOMENTS), len(MOMENTS + HIGHER)):
        raise ValueError(
            f"moments have {width} columns: expected {len(MOMENTS)} or {len(MOMENTS + HIGHER)}"
        )
    return COLUMNS[:width]


def is_higher(moments: Any) -> bool:
    """Whether `moments`, a tensor or array [..., 5 or 7], have the columns of `HIGHER`."""
    return bool(moments.shape[-1] > len(MOMENTS))


def identity_moments(
    channels: int, device: torch.device | str = "cpu", higher: bool = False
) -> torch.Tensor:
    """float64 [channels, 5], or 7 with `higher`: the moments of no values."""
    row = IDENTITY if higher else IDENTITY[: len(MOMENTS)]
    return torch.tensor(row, dtype=torch.float64, device=device).repeat(channels, 1)


def identity_tallies(channels: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """int64 [channels, 5]: the tallies of no values."""
    return torch.zeros(channels, len(TALLIES), dtype=torch.int64, device=device)


def between(count: Any, away: Any, sums: Sequence[Any]) -> list[Any]:
    """The part of the merged m2, m3 and m4 that stems from the distances between G groups' means.

    Pebay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order
    statistical moments" (2008), for any number of groups at once; for m2 it is the formula of Chan,
    Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
    (1979). The arguments are tensors or arrays.

    Args:
        count: the number of values of each group.
        away: the mean of each group, less the mean of all values.
        sums: the m2 of each group, or m2, m3 and m4; the result has as many.
    """
    square = away * away
    added = [count * square]
    if len(sums) > 1:
        m2, m3, _ = sums
        added.append(away * (3 * m2 + count * square))
        added.append(4 * away * m3 + square * (6 * m2 + count * square))
    return added


def combine(moments: torch.Tensor, tallies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge G groups of the same C channels, G >= 1; see `between`.

    moments: float64 [G, C, 5 or 7] -> [C, 5 or 7]; tallies: int64 [G, C, 5] -> [C, 5].
    """
    counts = tallies[..., COUNT].double()
    total = counts.sum(0)
    means = moments[..., MEAN]
    # Shifted by the largest group's mean, so that equal means stay equal to the last bit.
    shift = means.gather(0, counts.argmax(0, keepdim=True)).squeeze(0)
    offsets = torch.where(counts > 0, means - shift, 0.0)
    offset = (offsets * (counts / total.clamp(min=1))).sum(0)
    columns = moment_columns(moments.shape[-1])
    sums = [moments[..., i] for i, c in enumerate(columns) if c.merge == "central"]
    away = offsets - offset
    moved = (counts > 0) & (away != 0)  # else nothing is added, where 0 * inf would be NaN
    added = iter(between(counts, away, sums))
    merged = []
    for i, column in enumerate(columns):
        values = moments[..., i]
        if column.merge == "mean":
            merged.append(shift + offset)
        elif column.merge == "central":
            merged.append(values.sum(0) + torch.where(moved, next(added), 0.0).sum(0))
        else:
            merged.append(_MERGED[column.merge](values))
    return torch.stack(merged, dim=-1), tallies.sum(0)


_MERGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "min": lambda values: values.amin(0),
    "max": lambda values: values.amax(0),
    "sum": lambda values: values.sum(0),
}


def merge_(
    moments: torch.Tensor,
    tallies: torch.Tensor,
    other_moments: torch.Tensor,
    other_tallies: torch.Tensor,
) -> None:
    """Merge the other state of the same C channels into `moments` and `tallies`, in place.

    moments: float64 [C, 5 or 7], both of one width; tallies: int64 [C, 5].
    """
    merged = combine(torch.stack((moments, other_moments)), torch.stack((tallies, other_tallies)))
    moments.copy_(merged[0])
    tallies.copy_(merged[1])
