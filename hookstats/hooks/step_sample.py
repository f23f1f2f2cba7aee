"""StepSample: how far a step moves the weights, and whether gradients agree, from a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hookstats._torch import foreach_norm, is_dtensor, is_freed, is_plain, local_shard
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.readable import reporting

ELEMENTS = 1 << 16
"""The most elements in the samples of all optimizers of a watch, but for one of each parameter."""

_WHAT = "sampling an optimizer's steps"

PARAMETERS = 32
"""The most parameters of a group that are sampled: their median is that of all, nearly."""


class _Sample(NamedTuple):
    """Elements of the parameters of a group, or of their gradients."""

    parameters: tuple[int, ...]
    """The places of the parameters in their group."""
    sizes: tuple[int, ...]
    """How many elements each has."""
    values: Tensor
    """float64 [elements]."""


class StepSample:
    """Samples the parameters of one optimizer and their gradients around its steps.

    The sample has equally many elements of each parameter, at even distances in its memory from a
    start that a hash chooses; the same ones in each step. Of a parameter group it has up to 32
    parameters, at even distances in the group, with two dimensions or more if there are any. It is
    read in recorded steps;
    gradients are read in the steps before these, too. Each rank reads its own shards. Steps with a
    closure, sparse gradients and tensors with gaps in their memory are left out.
    """

    def __init__(
        self,
        buffers: DoubleBuffer,
        log: Callable[[Optimizer, Mapping[tuple[str, int], Tensor]], object],
        optimizers: Sized,
    ) -> None:
        """log: takes what a recorded step has, by name and place of the parameter group: norms for
        "update_ratio", and the "gradient_cosine", NaN where gradients are zero.

        optimizers: all that share `ELEMENTS`.
        """
        self._buffers = buffers
        self._log = log
        self._optimizers = optimizers
        self._weights: list[_Sample | None] = []
        self._gradients: list[_Sample | None] = []
        self._cosines: dict[tuple[str, int], Tensor] = {}
        self._failures: dict[str, str] = {}

    def before(self, optimizer: Optimizer, is_recorded: bool) -> None:
        """Read what the step needs; called when the step is closed, if the optimizer closes it.

        is_recorded: whether the step is; whether the next one is, the double buffer knows.
        """
        last, self._gradients, self._weights = self._gradients, [], []
        if not (is_recorded or self._buffers.recording) or self._failures:
            return
        if self._buffers.is_captured():  # replays log nothing
            return

        with self._buffers.lock, reporting(self._failures, _WHAT):
            self._gradients = self._samples(optimizer, of_gradients=True)
            if is_recorded:
                self._weights = self._samples(optimizer, of_gradients=False)
                pairs = enumerate(zip(last, self._gradients, strict=False))
                found = {("gradient_cosine", i): _cosine(*pair) for i, pair in pairs}
                self._cosines = {key: value for key, value in found.items() if value is not None}

    def after(self, optimizer: Optimizer) -> None:
        """Hand on what the step did, if `before` read its weights."""
        if not self._weights or self._failures:
            return
        with self._buffers.lock, reporting(self._failures, _WHAT):
            found = self._cosines
            now = self._samples(optimizer, of_gradients=False)
            for i, (was, is_now) in enumerate(zip(self._weights, now, strict=True)):
                if was is not None and is_now is not None and was[:2] == is_now[:2]:
                    sizes, change = list(was.sizes), is_now.values - was.values
                    parts = [p for x in (was.values, change) for p in torch.split(x, sizes)]
                    found["update_ratio", i] = torch.stack(foreach_norm(parts)).view(2, -1)
            self._log(optimizer, found)
        self._weights, self._cosines = [], {}

    def _samples(self, optimizer: Optimizer, *, of_gradients: bool) -> list[_Sample | None]:
        """The sample of each parameter group; None where it has no element."""
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = sum(min(len(group), PARAMETERS) for group in groups) * len(self._optimizers)
        many = max(1, ELEMENTS // max(1, parameters))
        return [_sample(group, many, of_gradients) for group in groups]


def update_ratio(norms: Tensor) -> float:
    """The median over parameters of the norm of the change to that of the weights before it.

    norms: float64 [2, parameters], on the host: of weights, and of their change. Weights that are
    all zero are left out; NaN where all are.
    """
    weights, change = norms.numpy()
    some = weights > 0
    return float(np.median(change[some] / weights[some])) if some.any() else math.nan


def chosen(group: Sequence[Tensor]) -> list[int]:
    """The places of the parameters of a group that are sampled."""
    several = [i for i, parameter in enumerate(group) if parameter.dim() > 1]
    several = several or list(range(len(group)))
    few = min(len(several), PARAMETERS)
    return [several[j * len(several) // few] for j in range(few)]


def _sample(group: Sequence[Tensor], many: int, of_gradients: bool) -> _Sample | None:
    """The sample of a parameter group, of up to `many` elements of each parameter."""
    found: dict[int, Tensor] = {}
    device = None
    for i in chosen(group):
        part = _part(group[i], i, many, of_gradients)
        if part is not None and device in (None, part.device):
            found[i], device = part, part.device
    if not found:
        return None
    values = torch.cat(list(found.values())).double()
    return _Sample(tuple(found), tuple(part.numel() for part in found.values()), values)


def _part(parameter: Tensor, place: int, many: int, of_gradients: bool) -> Tensor | None:
    """A view of up to `many` elements of a parameter, or of the same ones of its gradient; None
    where these cannot be read."""
    own = found = _local(parameter)
    if of_gradients:
        found = None if parameter.grad is None else _local(parameter.grad)
    if own is None or found is None or found.stride() != own.stride():
        return None
    return part_of(found, place, many)


def part_of(found: Tensor, place: int, many: int) -> Tensor | None:
    """A view of up to `many` elements of a tensor, a parameter's of this place in its group; None
    where these cannot be read."""
    own = _local(found)
    if own is None or not _is_dense(own):
        return None
    length = own.numel()
    stride = max(1, length // many)
    while math.gcd(stride, length) > 1:  # so that all columns have their turn
        stride -= 1
    size = min(length, many)
    start = place * 0x9E3779B1 % (length - stride * (size - 1))
    return torch.as_strided(own, (size,), (stride,), int(own.storage_offset()) + start)


def _local(tensor: Tensor) -> Tensor | None:
    """This rank's part; None where its memory cannot be read, or has no floating-point numbers."""
    found = local_shard(tensor) if is_dtensor(tensor) else tensor
    if not is_plain(found) or found.layout is not torch.strided or found.is_nested:
        return None
    if not found.is_floating_point() or is_freed(found) or not found.numel():
        return None
    return found.detach()


def _is_dense(tensor: Tensor) -> bool:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return True
    return tensor.is_contiguous()


def _cosine(one: _Sample | None, other: _Sample | None) -> Tensor | None:
    """The cosine of the angle between two samples of gradients, of the same parameters."""
    if one is None or other is None or one[:2] != other[:2]:
        return None
    a, b = one.values, other.values
    cosine: Tensor = torch.dot(a, b) / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
    return cosine
