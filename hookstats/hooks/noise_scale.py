"""NoiseScale: the gradient noise scale of a step, from the gradients of its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookstats._torch import is_dtensor
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.inert import Calling
from hookstats.hooks.readable import reporting
from hookstats.hooks.step_sample import ELEMENTS, chosen, part_of

NOISE_SCALE = "noise_scale"
"""The kind that asks for it, and the name of the number."""

_WHAT = "reading gradients of micro-batches"

DECAY = 0.9
"""By how much a step counts less than the next one in the averages."""


class _Sums(NamedTuple):
    """What a parameter's gradients of the open step add up to."""

    backwards: int
    total: Tensor
    """float64 [elements]: the sum of the sampled elements."""
    squares: Tensor
    """float64: the sum of the squared norms, of all elements as the sample says."""
    weight: float
    """How many elements each of the sample stands for."""


class NoiseScale:
    """Estimates the noise scale of each parameter group of one optimizer, in micro-batches.

    With n micro-batches of a step, whose gradients are g_i, of their mean G (McCandlish et al.,
    "An Empirical Model of Large-Batch Training", 2018, appendix A.1):

        small = mean of |g_i|^2, big = |G|^2
        |true gradient|^2 ~ (n * big - small) / (n - 1)
        trace of the covariance ~ (small - big) / (1 - 1 / n)

    The noise scale is the ratio of the averages of the second and the first over steps, each of
    which counts `DECAY` times as much as the next one; NaN where the first is not above zero. Each
    backward counts as a micro-batch. Hooks of up to 32 parameters a group see what the backward
    brings, before it is added to `grad`, clipped, unscaled or averaged over ranks: under DDP it is
    of this rank's micro-batches. Sharded parameters have none.
    """

    def __init__(
        self,
        buffers: DoubleBuffer,
        log: Callable[[Optimizer, Mapping[tuple[str, int], Tensor]], object],
    ) -> None:
        """log: takes the noise scale of a step by name and place of the parameter group."""
        self._buffers = buffers
        self._log = log
        self._sums: dict[tuple[int, int], _Sums] = {}  # by places of group and parameter
        self._averages: dict[int, Tensor] = {}  # float64 [2] by group: trace, squared norm
        self._failures: dict[str, str] = {}

    def attach(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Register the hooks of the parameters that are sampled, and that of the steps."""
        handles = [optimizer.register_step_pre_hook(Calling(self._step))]
        groups = [group["params"] for group in optimizer.param_groups]
        places = [(g, p) for g, group in enumerate(groups) for p in chosen(group)]
        many = max(1, ELEMENTS // max(1, len(places)))
        for g, p in places:
            parameter = groups[g][p]
            if parameter.requires_grad and parameter.is_leaf and not is_dtensor(parameter):
                add = partial(self._add, (g, p), many, parameter.shape)
                handles.append(parameter.register_hook(add))
        return handles

    def _add(self, place: tuple[int, int], many: int, shape: torch.Size, gradient: Tensor) -> None:
        """Take in the gradient that a backward brings to a parameter."""
        if not self._buffers.recording or self._failures or self._buffers.is_captured():
            return
        with reporting(self._failures, _WHAT):
            part = part_of(gradient, place[1], many)
            if part is None or gradient.shape != shape:
                return
            values = part.double()
            weight = gradient.numel() / len(values)
            squares = torch.dot(values, values) * weight
            before = self._sums.get(place)
            if before is not None:
                values, squares = before.total + values, before.squares + squares
            n = 1 if before is None else before.backwards + 1
            self._sums[place] = _Sums(n, values, squares, weight)

    def _step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Log what the micro-batches of the step say, and begin the next one; a closure computes
        gradients of one batch again, and counts for nothing."""
        sums, self._sums = self._sums, {}
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is not None:
            self._failures.setdefault("closure", "")
        if self._failures or not self._buffers.recording:
            return
        groups: dict[int, list[_Sums]] = {}
        for (group, _), one in sums.items():
            groups.setdefault(group, []).append(one)
        with reporting(self._failures, _WHAT):
            found = {(NOISE_SCALE, g): self._scale(g, each) for g, each in groups.items()}
            self._log(optimizer, {key: scale for key, scale in found.items() if scale is not None})

    def _scale(self, group: int, sums: list[_Sums]) -> Tensor | None:
        """The noise scale of a group; None with one micro-batch."""
        n = max(one.backwards for one in sums)  # a parameter that one does not use gets no gradient
        if n < 2 or len({one.total.device for one in sums}) > 1:
            return None
        small = torch.stack([one.squares for one in sums]).sum() / n
        squares = [torch.dot(one.total, one.total) * one.weight for one in sums]
        big = torch.stack(squares).sum() / n**2
        now = torch.stack([(small - big) / (1 - 1 / n), (n * big - small) / (n - 1)])
        before = self._averages.get(group, torch.zeros_like(now))
        # A loss scaler that looks for its scale lets gradients overflow.
        average = torch.where(now.isfinite().all(), DECAY * before + now, before)
        self._averages[group] = average
        trace, norm = average
        return torch.where(norm > 0, trace.clamp(min=0) / norm, math.nan)
