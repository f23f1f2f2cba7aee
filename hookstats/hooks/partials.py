"""Partials: copies of the gradients of which each rank has a summand, as optimizers use them.

Statistics of a sum do not follow from those of its summands: who wants the former needs the
summands themselves. Tensor parallelism with sequences that are cut has such gradients, of norms.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from hookstats._torch import is_dtensor, is_plain
from hookstats.hooks.channels import Rule
from hookstats.hooks.readable import local_part, short
from hookstats.hooks.sites import channels_of
from hookstats.hooks.spread import Spread
from hookstats.records.record import SiteInfo
from hookstats.records.summands import Summand

KIND = "param_grad"


class Gradient(NamedTuple):
    """The gradient of a parameter."""

    name: str
    rule: Rule
    """For its channels."""
    tensor: Tensor


class _Kept(list[Summand]):
    """The summands of a step, which can be referred to weakly."""


class Partials:
    """The summands of the open step, at most `most` bytes, in order of the parameters; and of one
    step before that is not read yet."""

    def __init__(self, spread: Spread, most: int) -> None:
        self._spread = spread
        self._free = self._most = most
        self.wanted = False
        """Whether the open step is to have them."""
        self._open = _Kept()
        self._last: weakref.ref[_Kept] | None = None

    def keep(self, gradients: Iterable[Gradient], scale: Tensor | None) -> None:
        """Copy those of the gradients that are partial, divided by `scale`."""
        for gradient in gradients:
            found = self._describe(gradient) if is_dtensor(gradient.tensor) else None
            if found is None or found.values.nbytes > self._free:
                continue
            self._free -= found.values.nbytes
            values = found.values.to("cpu", copy=True)
            if scale is not None:
                values /= scale.to("cpu")
            self._open.append(found._replace(values=values))

    def take(self) -> Sequence[Summand]:
        """The summands of the open step, which ends; none while those of another wait."""
        taken, self._open, self._free = self._open, _Kept(), self._most
        if not taken or (self._last is not None and self._last() is not None):
            return ()
        self._last = weakref.ref(taken)
        return taken

    def _describe(self, gradient: Gradient) -> Summand | None:
        """The gradient as a summand, without a copy of its values; None if it is none."""
        found = self._spread.of_sum(KIND, gradient.tensor)
        if found is None:
            return None
        part = local_part(gradient.tensor)
        if not is_plain(part):
            return None
        shape = tuple(part.shape)
        channels = channels_of(gradient.rule, shape, part.dtype, part.device)
        if isinstance(channels, str):
            return None
        dim, number = channels
        layout, ranks, is_mean = found
        info = SiteInfo(gradient.name, KIND, number, dim, shape, short(part.dtype), layout)
        return Summand(info, part.detach(), ranks, is_mean)
