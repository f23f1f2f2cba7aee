"""Recorder: keeps tensors of calls, detached, within limits on calls and bytes."""

from __future__ import annotations

import random
import threading
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._C import _DisableTorchDispatch, _has_storage

from hookstats.hooks.readable import is_plain, local_part, unreadable
from hookstats.tensors.captured import CapturedCall

NOT_SAMPLED = "not sampled"
MAX_BYTES = "max_bytes"


class Source:
    """What calls come from, a module or a tensor: how many there were, and which are kept."""

    __slots__ = ("calls", "error", "kept", "random", "skipped")

    def __init__(self, seed: int) -> None:
        self.calls = 0
        """Forward calls, or backwards of a tensor, without those that were skipped whole."""
        self.skipped: Counter[str] = Counter()
        """Calls that are not kept, by reason."""
        self.kept: dict[int, CapturedCall] = {}
        """By place in the sample."""
        self.error: str | None = None
        # Not torch's: the training draws from that. Sources that are called equally often keep
        # the same calls.
        self.random = random.Random(seed)

    @property
    def dropped(self) -> int:
        """How many calls the limits left out."""
        return self.skipped[NOT_SAMPLED] + self.skipped[MAX_BYTES]


class Recorder:
    """The calls that are kept: of each source a uniform sample, of all these the newest that fit.

    Its methods are called under its lock.
    """

    def __init__(
        self,
        kinds: tuple[str, ...],
        clone: bool,
        device: torch.device | None,
        calls: int | None,
        seed: int,
        max_bytes: int | None,
    ) -> None:
        self.lock = threading.RLock()
        self.kinds = kinds
        self.closed = False
        self.nbytes = 0
        self.sources: dict[str, Source] = {}
        self._clone = clone
        self._device = device
        self._limit = calls
        self._seed = seed
        self._max_bytes = max_bytes
        # Values: their source and place in its sample. In order of their beginnings.
        self._kept: dict[CapturedCall, tuple[Source, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed, (self.kinds,)

    def source(self, name: str) -> Source:
        """The source of that name, a new one if there is none."""
        if name not in self.sources:
            self.sources[name] = Source(self._seed)
        return self.sources[name]

    def begin(self, name: str) -> CapturedCall | None:
        """Count a call and say what keeps its tensors; None where it is not kept.

        Of each source, `calls` are kept: Vitter, "Random sampling with a reservoir" (1985),
        algorithm R. A place that `max_bytes` emptied is taken as if it were not empty, so that the
        sample does not lean towards what comes later.
        """
        source = self.source(name)
        index = place = source.calls
        source.calls += 1
        if source.error is not None:
            source.skipped["disabled"] += 1
            return None
        if self._limit is not None and index >= self._limit:
            place = source.random.randrange(index + 1)
            if place >= self._limit:
                source.skipped[NOT_SAMPLED] += 1
                return None
            if place in source.kept:
                self._drop(source.kept[place], NOT_SAMPLED)
        call = CapturedCall(name, index, self.kinds)
        source.kept[place] = call
        self._kept[call] = source, place
        return call

    def keeps(self, call: CapturedCall) -> bool:
        """Whether `call` has not been dropped."""
        return not self.closed and call in self._kept

    def take(self, call: CapturedCall, tensor: Tensor) -> Tensor | str:
        """What is kept of `tensor`, detached, for `call`; or the reason that it is left out.

        Calls may be dropped for it, the oldest first, and be it `call` itself. Raises nothing but
        torch.AcceleratorError, after which the device is lost.
        """
        try:
            reason = unreadable(tensor)
            if reason is not None:
                return reason
            x = tensor if is_plain(tensor) else local_part(tensor)
            nbytes = x.numel() * x.element_size()
            if not self._make_room(call, nbytes):
                return MAX_BYTES
            # Outside of inference mode a clone is an ordinary tensor. Dispatch modes are not to
            # see it: a selective checkpoint would take it for a part of the forward.
            with torch.inference_mode(False), _DisableTorchDispatch():
                taken = x.detach()
                taken = taken.to(self._device or taken.device, copy=self._clone)
        except Exception as error:
            # Batched by the vmap of autograd.grad, or freed as shards are, to name two.
            if tensor.numel() and not (_has_storage(tensor) and tensor.untyped_storage().nbytes()):
                return "no storage"
            return self.fail(call.name, error)
        self.nbytes += nbytes
        call.nbytes += nbytes
        return taken

    def fail(self, name: str, error: Exception) -> str:
        """Keep nothing of a source any more because of `error`; warn, once; give the reason."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        source = self.source(name)
        if source.error is None:
            source.error = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"hookstats captures {name!r} no more: {source.error}", RuntimeWarning, stacklevel=3
            )
        return "disabled"

    def clear(self) -> None:
        """Forget every call and every count."""
        self._kept.clear()
        self.nbytes = 0
        for name in self.sources:
            self.sources[name] = Source(self._seed)

    def kept(self) -> list[CapturedCall]:
        """All calls that are kept, in order of their beginnings."""
        return list(self._kept)

    def _make_room(self, call: CapturedCall, nbytes: int) -> bool:
        """Drop what is too old for `nbytes` more, of `call`; whether that was not `call` itself."""
        if self._max_bytes is None or call not in self._kept:
            return call in self._kept
        if call.nbytes + nbytes > self._max_bytes:  # no use to drop the others
            self._drop(call, MAX_BYTES)
        else:
            while self.nbytes + nbytes > self._max_bytes and call in self._kept:
                self._drop(next(iter(self._kept)), MAX_BYTES)
        return call in self._kept

    def _drop(self, call: CapturedCall, reason: str) -> None:
        source, place = self._kept.pop(call)
        del source.kept[place]
        source.skipped[reason] += 1
        self.nbytes -= call.nbytes


def _closed(kinds: tuple[str, ...]) -> Recorder:
    """What a copy has in a recorder's place: nothing, and nothing comes to it."""
    recorder = Recorder(kinds, True, None, None, 0, None)
    recorder.closed = True
    return recorder
