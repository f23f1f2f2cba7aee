"""Events: what enters and leaves the modules of a model, in order, as a few numbers of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookstats.hooks.leaves import argument_leaves, leaves

Part = Callable[[Tensor], Tensor | None]
"""The part of a tensor that is compared, such as one sample; None for a tensor without it."""


class Event(NamedTuple):
    """A module's arguments, or what it returned.

    `numbers`, float64 [tensors, 3] on the model's device, has of the part of each tensor the sum,
    the sum of squares and a weighted sum; `spread` [tensors] how much samples differ, against the
    largest of the values.
    """

    name: str
    is_entry: bool
    numbers: Tensor
    spread: Tensor

    @property
    def module(self) -> str:
        """The module that made the tensors: what enters a module is made by the one around it."""
        return self.name.rpartition(".")[0] if self.is_entry else self.name


def recorded(model: nn.Module, part: Part, run: Callable[[], Any]) -> tuple[list[Event], Any]:
    """The events of a run of the model, and what the run returned."""
    events: list[Event] = []

    def note(name: str, is_entry: bool, found: Sequence[Tensor]) -> None:
        parts = [
            (one, its)
            for one in found
            if one.is_floating_point() and one.numel() and (its := part(one)) is not None
        ]
        if parts:
            numbers = torch.stack([_numbers(its) for _, its in parts])
            spread = torch.stack([_spread(one.detach(), its.detach()) for one, its in parts])
            events.append(Event(name, is_entry, numbers, spread))

    def entry(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            note(name, True, [one for _, one in argument_leaves(args, kwargs)])

        return hook

    def leaving(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            note(name, False, [one for _, one in leaves(output)])

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                before = module.register_forward_pre_hook(entry(name), with_kwargs=True)
                stack.callback(before.remove)
                stack.callback(module.register_forward_hook(leaving(name)).remove)
        return events, run()


def _numbers(part: Tensor) -> Tensor:
    values = part.detach().double().flatten()
    ramp = torch.linspace(1.0, 2.0, len(values), dtype=values.dtype, device=values.device)
    return torch.stack([values.sum(), values.square().sum(), values @ ramp])


def _spread(whole: Tensor, part: Tensor) -> Tensor:
    """How far other samples are from this one, against the largest value."""
    if whole.dim() != part.dim() + 1:  # a part that is no sample
        return torch.ones((), dtype=torch.float64, device=whole.device)
    dim = next(i for i in range(whole.dim()) if _without(whole.shape, i) == part.shape)
    most = whole.abs().max().double().clamp(min=1e-300)
    return (whole - part.unsqueeze(dim)).abs().max().double() / most


def _without(shape: torch.Size, dim: int) -> torch.Size:
    return torch.Size((*shape[:dim], *shape[dim + 1 :]))


def first_difference(one: Sequence[Event], other: Sequence[Event], tolerance: float) -> str | None:
    """The module in which two runs first differ, by name; None where that is not known."""
    for a, b in zip(one, other, strict=False):
        if (a.name, a.is_entry, a.numbers.shape) != (b.name, b.is_entry, b.numbers.shape):
            return None
        size = a.numbers[:, 1].sqrt().clamp(min=1e-300)[:, None]
        if bool(((a.numbers.sub(b.numbers).abs()[:, [0, 2]] / size) > tolerance).any()):
            return a.module
    return None


def first_constant(events: Sequence[Event], tolerance: float) -> str | None:
    """The module whose output is the same for all samples, after which all are."""
    last: str | None = None
    for event in reversed(events):
        if bool((event.spread > tolerance).any()):
            return last
        last = event.module
    return last


def first_nonfinite(events: Sequence[Event]) -> str | None:
    """The module whose output is the first that is not finite."""
    return next((e.module for e in events if not bool(e.numbers.isfinite().all())), None)
