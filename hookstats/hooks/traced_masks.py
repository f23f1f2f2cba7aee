"""Masks in compiled code: what dynamo traces where calls of models begin and end.

A graph has its mask as a tensor. Where the model itself is compiled, the mask is an argument of the
graph and is copied in it. Where a part of the model is, or a context has the mask, dynamo finds the
copy as an attribute, and makes it an input of the graph. Either way, graphs are compiled again only
as for any argument: where there is a mask and was none, and for other shapes. The backward has the
copy as it has other tensors of the forward. CUDA graphs copy the input into memory of their own.

The calls under way are a chain in an attribute, `MaskOfCalls.traced`. In a trace dynamo follows its
changes without the attribute; only a graph that breaks leaves the chain there for its next part.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from torch import Tensor

from hookstats._torch import mark_constant
from hookstats.arena.arena import Arena
from hookstats.hooks.traced import hookstats_leaves_out
from hookstats.stats.mask import EXPECTED, unfit


class TracedMasks:
    """The masks of calls of models that are compiled."""

    def __init__(self, arena: Arena, warn_once: Callable[[str], None], unfit: Tensor) -> None:
        """unfit: a mask that fits nothing, for calls that were given no mask but something else."""
        self.key = str(id(self))  # constant functions take no objects before torch 2.12
        _traced_masks[self.key] = self
        self.arena = arena
        self.warn_once = warn_once
        self.unfit = unfit

    def begin_call(self, given: object) -> None:
        """A call begins, which was `given` a mask; None: it has that of what it is in."""
        if not self.arena.recording or hookstats_leaves_out():
            return
        masks = self.arena.mask
        mask = masks.in_trace() if given is None else self._of_given(given)
        masks.traced = (mask, masks.traced)

    def _of_given(self, given: object) -> Tensor:
        if not isinstance(given, Tensor):
            why = f"type {type(given).__name__}"
        elif type(given).__name__ != "Tensor":
            return self.unfit
        else:
            found = unfit(given)
            if found is None:
                return (given.detach() != 0).contiguous()
            why = found
        hookstats_refuses_mask(self.key, why)
        return self.unfit

    def end_call(self) -> None:
        """The innermost call ends."""
        if not self.arena.recording or hookstats_leaves_out():
            return
        hookstats_tells_of_breaks(self.key)
        masks = self.arena.mask
        if masks.traced is not None:
            masks.traced = masks.traced[1]


_traced_masks: WeakValueDictionary[str, TracedMasks] = WeakValueDictionary()


def hookstats_refuses_mask(key: str, why: str) -> None:
    """Say once that an argument is no mask; runs while dynamo traces."""
    _traced_masks[key].warn_once(f"the argument has {why}, expected {EXPECTED}")


def hookstats_tells_of_breaks(key: str) -> None:
    """Say once that the graph of a call with a mask has breaks; runs while dynamo traces."""
    traced = _traced_masks[key]
    if traced.arena.mask.traced is not None and traced.arena.mask.traced[0] is not None:
        traced.warn_once("a graph of compiled code breaks in a call, and parts run uncompiled")


for _function in (hookstats_refuses_mask, hookstats_tells_of_breaks):
    mark_constant(_function)
