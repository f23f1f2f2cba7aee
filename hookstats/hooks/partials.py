"""Partials: copies of the gradients of which each rank has a summand, as optimizers use them.

Statistics of a sum do not follow from those of its summands: who wants the former needs the
summands themselves. Tensor parallelism with sequences that are cut has such gradients, of norms.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from hookstats._torch import is_dtensor, is_plain, placed
from hookstats.hooks.readable import local_part, short
from hookstats.hooks.sites import Site, channels_of
from hookstats.hooks.spread import Spread
from hookstats.records.record import SiteInfo
from hookstats.records.summands import Summand, Summands
from hookstats.stats.warning import warn

KIND = "param_grad"
BYTES_AHEAD = 32 << 20
"""The memory of the summands of all steps that wait to be merged, or that of two steps if these
need more."""
_WHAT = "adding up gradients"


class Gradient(NamedTuple):
    """The gradient of a parameter."""

    site: Site
    tensor: Tensor


class Partials:
    """The summands of the open step, at most `most` bytes, in order of the parameters. Those of
    steps before that are not merged yet count toward `BYTES_AHEAD`."""

    def __init__(self, spread: Spread, most: int) -> None:
        self._spread = spread
        self._most = most
        self.wanted = False
        """Whether the open step is to have them."""
        self.failures: dict[str, str] = {}
        """What there was no room for, if anything, as in `Coverage.failures`."""
        self._open = Summands()
        self._waiting: deque[weakref.ref[Summands]] = deque()
        self._refused = 0  # how many summands there was no room for
        self._full = ""  # what had none, the first time

    def keep(self, gradients: Iterable[Gradient], scale: Tensor | None) -> None:
        """Copy those of the gradients that are partial, divided by `scale`."""
        for site, tensor in gradients:
            if not is_dtensor(tensor) or not any(p.is_partial() for p in placed(tensor).placements):
                continue
            found = None
            if site.error is None:
                try:
                    found = self._kept(site, tensor, scale)
                except Exception as error:
                    site.disable(error)
            if found is None:
                self._open.lost += 1
            else:
                self._open.append(found)

    def take(self) -> Summands | None:
        """The summands of the open step, which ends; None if it has no partial gradients."""
        if not (self._open or self._open.lost):  # as a rule
            return None
        taken, self._open = self._open, Summands()
        if taken:
            self._waiting.append(weakref.ref(taken))
        return taken

    def _kept(self, site: Site, tensor: Tensor, scale: Tensor | None) -> Summand | None:
        """The gradient as a summand, copied; None if it is none, or if there is no room for it."""
        found = self._describe(site, tensor)
        if found is None:
            return None
        dtype = found.values.dtype
        if scale is not None:  # as the kernels divide: few bits are left of small half floats
            dtype = torch.promote_types(dtype, torch.float32)
        full = self._has_no_room(found.values.numel() * dtype.itemsize)
        if full is not None:
            self._refuse(site, full)
            return None
        values = found.values.to("cpu", dtype, copy=True)
        if scale is not None:
            values /= scale.to("cpu")
        return found._replace(values=values)

    def _has_no_room(self, needed: int) -> str | None:
        """What is full, if `needed` more bytes are too many."""
        mine = self._open.nbytes + needed
        if mine > self._most:
            return f"partial_bytes = {self._most} has no room for {mine} bytes of a step"
        waiting = [step for step in (each() for each in self._waiting) if step is not None]
        self._waiting = deque(map(weakref.ref, waiting))
        room = max(BYTES_AHEAD, 2 * self._most)
        if mine + sum(step.nbytes for step in waiting) > room:
            return f"{len(waiting)} steps before wait to be merged, in {room} bytes"
        return None

    def _refuse(self, site: Site, full: str) -> None:
        """Count a summand that is left out, and warn of the first one."""
        self._refused += 1
        if self._refused == 1:
            self._full = f"{full}, and so the sum of {site.name!r} and grad_norm are left out"
            warn(f"hookstats: {_WHAT} failed: {self._full}")
        self.failures[_WHAT] = f"{self._full}; in all, {self._refused} summands are left out"

    def _describe(self, site: Site, tensor: Tensor) -> Summand | None:
        """The gradient as a summand, without a copy of its values; None if it is none."""
        found = self._spread.of_sum(KIND, tensor)
        if found is None:
            return None
        part = local_part(tensor)
        if not is_plain(part):
            return None
        shape = tuple(part.shape)
        channels = channels_of(site.rule, shape, part.dtype, part.device)
        if isinstance(channels, str):
            return None
        dim, number = channels
        layout, ranks, is_mean = found
        info = SiteInfo(site.name, KIND, number, dim, shape, short(part.dtype), layout)
        return Summand(info, part.detach(), ranks, is_mean)
