"""Summand, Summands: what one rank adds to gradients that are sums over some ranks; these sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from hookstats.records.keys import Key
from hookstats.records.record import SiteInfo


class Summand(NamedTuple):
    """A gradient of which each of some ranks has a summand: DTensor's placement `Partial`."""

    info: SiteInfo
    """Of the sum; its layout is that of a replica."""
    values: Tensor
    """What this rank adds, on the CPU; of another dtype than `info` has where it was unscaled."""
    ranks: tuple[int, ...]
    """The ranks that have summands, ascending; they are the same in the summands of one sum."""
    is_mean: bool
    """Whether the gradient is the mean of the summands, not their sum."""


class Summands(list[Summand]):
    """What a rank adds to the sums of one step."""

    lost = 0
    """How many more partial gradients the step has, of which nothing was kept."""

    @property
    def nbytes(self) -> int:
        """The memory of the values."""
        return sum(summand.values.nbytes for summand in self)


def added(summands: Iterable[Summand]) -> list[tuple[SiteInfo, Tensor | None]]:
    """The sums, in order of their first summands; None for one of which summands are missing, or
    of which a rank has several.

    summands: in order of rank. The sums are made in float32, or in float64 if the summands are, in
    that order, and are rounded to the dtype of the summands.
    """
    groups: dict[tuple[Key, tuple[int, ...]], list[Summand]] = defaultdict(list)
    for summand in summands:
        groups[(summand.info.name, summand.info.kind), summand.ranks].append(summand)
    sums: list[tuple[SiteInfo, Tensor | None]] = []
    for (_, ranks), group in groups.items():
        first = group[0]
        if len(group) != len(ranks) or any(s.values.shape != first.values.shape for s in group):
            sums.append((first.info, None))
            continue
        dtype = first.values.dtype
        total = first.values.to(torch.promote_types(dtype, torch.float32), copy=True)
        for summand in group[1:]:
            total += summand.values
        if first.is_mean:
            total /= len(group)
        sums.append((first.info, total.to(dtype)))
    return sums
