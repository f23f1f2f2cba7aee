"""The state of a channel: the table of its columns and their identity.

Every column of a state is defined here, once; the C++ kernels keep the same columns
(csrc/core/state.h). `merge` merges states; what is derived from the columns is in `derived`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from hookstats.stats.lazy_torch import torch


class Column(NamedTuple):
    """One column of a state."""

    name: str
    dtype: type[np.float64] | type[np.int64]
    """float64 in `moments`, int64 in `tallies`."""
    identity: float
    """The value of the column where there are no values."""
    merge: Literal["mean", "central", "min", "max", "sum"]
    """How the column merges: "central" is a sum of squared deviations from the mean."""
    of: Callable[[torch.Tensor], torch.Tensor] | None = None
    """What a sum adds up for each value: moments are of finite values, tallies of all."""


COLUMNS = (
    Column("mean", np.float64, 0.0, "mean"),
    Column("m2", np.float64, 0.0, "central"),
    Column("min", np.float64, float("inf"), "min"),
    Column("max", np.float64, float("-inf"), "max"),
    Column("l1", np.float64, 0.0, "sum", lambda x: x.abs()),
    Column("count", np.int64, 0, "sum", lambda x: x.isfinite()),
    Column("nan", np.int64, 0, "sum", lambda x: x.isnan()),
    Column("posinf", np.int64, 0, "sum", lambda x: x == float("inf")),
    Column("neginf", np.int64, 0, "sum", lambda x: x == float("-inf")),
    Column("zero", np.int64, 0, "sum", lambda x: x == 0),
)
"""The columns of `moments` and then of `tallies`, in the order in which these have them.

m2 is the sum of squared deviations from the mean, infinite where float64 cannot hold it; l1 is the
sum of magnitudes; count holds the finite values, zero the zeros of either sign.
"""


MOMENT_COLUMNS = tuple(c for c in COLUMNS if c.dtype is np.float64)
MOMENTS = tuple(c.name for c in MOMENT_COLUMNS)
"""The columns of `moments` (float64)."""

TALLIES = tuple(c.name for c in COLUMNS if c.dtype is np.int64)
"""The columns of `tallies` (int64)."""

MEAN, M2, MIN, MAX, L1 = range(len(MOMENTS))
COUNT, NAN, POSINF, NEGINF, ZERO = range(len(TALLIES))

IDENTITY = tuple(c.identity for c in MOMENT_COLUMNS)
"""The moments of no values; the tallies of no values are zeros."""


class State(NamedTuple):
    """The state that `hookstats::update_` accumulates tensors into: C channels of one site.

    The fields are in the order in which the operators take them.
    """

    moments: torch.Tensor
    """float64 [C, 5]."""
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
    `channel_counts`, 0 for "auto"; None where all elements count. Of graphs int64 [4]: where the
    last one is 0, as in steps that are not recorded, the operators do nothing."""


def identity_moments(channels: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """float64 [channels, 5]: the moments of no values."""
    return torch.tensor(IDENTITY, dtype=torch.float64, device=device).repeat(channels, 1)


def identity_tallies(channels: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """int64 [channels, 5]: the tallies of no values."""
    return torch.zeros(channels, len(TALLIES), dtype=torch.int64, device=device)
