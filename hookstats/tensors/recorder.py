"""Recorder: keeps the tensors of calls, detached, within limits on calls and bytes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookstats._torch import DisableTorchDispatch, is_freed
from hookstats.buffers.lock import lock
from hookstats.hooks.readable import classify
from hookstats.records.reasons import DISABLED, MAX_BYTES, NO_STORAGE, NOT_SAMPLED
from hookstats.stats.messages import error_text, warn
from hookstats.tensors.captured import CapturedCall


class Limits(NamedTuple):
    """What a recorder keeps, as `capture` documents its arguments."""

    clone: bool = True
    device: torch.device | None = None
    calls: int | None = None
    seed: int = 0
    max_bytes: int | None = None


class Source:
    """A source of calls, a module or a tensor: how many calls there were, and which are kept."""

    __slots__ = ("calls", "error", "kept", "random", "skipped")

    def __init__(self, seed: int) -> None:
        self.calls = 0
        """The number of forward calls, or of backwards of a tensor, without skipped calls."""
        self.skipped: Counter[str] = Counter()
        """The number of calls that are not kept, by reason."""
        self.kept: dict[int, CapturedCall] = {}
        """The kept calls, by place in the sample."""
        self.error: str | None = None
        # Not torch's generator, from which the training draws. Equal seeds make sources that are
        # called equally often keep the same calls.
        self.random = random.Random(seed)

    @property
    def dropped(self) -> int:
        """The number of calls that the limits left out."""
        return self.skipped[NOT_SAMPLED] + self.skipped[MAX_BYTES]


class Recorder:
    """The kept calls: a uniform sample per source, and of all these the newest that fit.

    Callers hold the recorder's lock.
    """

    def __init__(self, kinds: tuple[str, ...], limits: Limits) -> None:
        self.lock = lock()
        self.kinds = kinds
        self.closed = False
        self.nbytes = 0
        self.sources: dict[str, Source] = {}
        self._limits = limits
        # The source of each call and its place in the sample, in the order in which calls began.
        self._kept: dict[CapturedCall, tuple[Source, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed, (self.kinds,)

    def source(self, name: str) -> Source:
        """The source of that name, made at the first call."""
        if name not in self.sources:
            self.sources[name] = Source(self._limits.seed)
        return self.sources[name]

    def begin(self, name: str) -> CapturedCall | None:
        """Count a call, and return the object that keeps its tensors; None if it is not kept.

        Each source keeps `calls` of its calls: Vitter, "Random sampling with a reservoir" (1985),
        algorithm R. A place that `max_bytes` emptied counts as taken, so that the sample does not
        lean towards later calls.
        """
        source = self.source(name)
        index = place = source.calls
        source.calls += 1
        limit = self._limits.calls
        if source.error is not None:
            source.skipped[DISABLED] += 1
            return None
        if limit is not None and index >= limit:
            place = source.random.randrange(index + 1)
            if place >= limit:
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
        """The values of `tensor` to keep for `call`, detached; or the reason to leave it out.

        Calls may be dropped to make room, the oldest first, even `call` itself. Raises nothing but
        torch.AcceleratorError, after which the device is lost.
        """
        try:
            x = classify(tensor)
            if isinstance(x, str):
                return x
            if is_freed(x):
                return NO_STORAGE
            nbytes = x.numel() * x.element_size()
            if not self._make_room(call, nbytes):
                return MAX_BYTES
            # Outside of inference mode a clone is an ordinary tensor. Dispatch modes must not see
            # it: a selective checkpoint would take it for a part of the forward.
            with torch.inference_mode(False), DisableTorchDispatch():
                taken = x.detach()
                taken = taken.to(self._limits.device or taken.device, copy=self._limits.clone)
        except Exception as error:
            return NO_STORAGE if is_freed(tensor) else self.fail(call.name, error)
        self.nbytes += nbytes
        call.nbytes += nbytes
        return taken

    def fail(self, name: str, error: Exception) -> str:
        """Keep no more calls of a source because of `error`, and warn once; returns the reason."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        source = self.source(name)
        if source.error is None:
            source.error = error_text(error)
            warn(f"hookstats no longer captures {name!r}: {source.error}")
        return DISABLED

    def clear(self) -> None:
        """Forget every call and every count."""
        self._kept.clear()
        self.nbytes = 0
        for name in self.sources:
            self.sources[name] = Source(self._limits.seed)

    def kept(self) -> list[CapturedCall]:
        """All kept calls, in the order in which they began."""
        return list(self._kept)

    def _make_room(self, call: CapturedCall, nbytes: int) -> bool:
        """Drop the oldest calls to make room for `nbytes` of `call`; whether `call` is kept."""
        most = self._limits.max_bytes
        if most is None or call not in self._kept:
            return call in self._kept
        if call.nbytes + nbytes > most:  # dropping the others would not help
            self._drop(call, MAX_BYTES)
        else:
            while self.nbytes + nbytes > most and call in self._kept:
                self._drop(next(iter(self._kept)), MAX_BYTES)
        return call in self._kept

    def _drop(self, call: CapturedCall, reason: str) -> None:
        source, place = self._kept.pop(call)
        del source.kept[place]
        source.skipped[reason] += 1
        self.nbytes -= call.nbytes


def _closed(kinds: tuple[str, ...]) -> Recorder:
    """The recorder of a copy: it is empty and closed."""
    recorder = Recorder(kinds, Limits())
    recorder.closed = True
    return recorder
