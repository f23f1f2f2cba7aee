"""Router: hands the calls of a module to the hook of their phase."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.compiler import is_dynamo_compiling

from hookstats.arena.arena import Arena
from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.inert import Hook
from hookstats.hooks.modules import InputHook, OutputHook
from hookstats.hooks.phases import Phases


class Routed(NamedTuple):
    """What handles a module's calls in one phase."""

    front: Callable[..., Any]
    """The hook to call."""
    first: InputHook | OutputHook
    """The hook that dynamo traces."""
    key: Callable[[], str]
    """The key of the hook for the next call that dynamo traces."""


class Router(Hook):
    """A module's hook where calls may be of phases, each with hooks and sites of its own."""

    __slots__ = ("__weakref__", "_arena", "_make", "_phases", "_routed", "first")

    def __init__(self, arena: Arena, phases: Phases, make: Callable[[str], Routed]) -> None:
        """make: from the name of a phase, "" for training."""
        self._arena = arena
        self._phases = phases
        self._make = make
        self._routed: dict[str, Routed] = {}
        self.first = self.of_phase("").first
        """The hook of training, which dynamo traces."""
        self.first.traced.phases = phases
        self.first.traced.for_call = weakref.WeakMethod(self._key_of_call)

    def __call__(self, *args: Any) -> None:
        if self._arena.recording:
            if is_dynamo_compiling():
                self.first(*args)
            else:
                self.of_phase(self._phases.of_call()).front(*args)

    def of_phase(self, phase: str) -> Routed:
        """What handles the calls in a phase; made at the first."""
        found = self._routed.get(phase)
        if found is None:
            with self._arena.lock:
                found = self._routed.get(phase) or self._make(phase)
                self._routed[phase] = found
        return found

    def _key_of_call(self) -> str:
        return self.of_phase(self._phases.of_call()).key()


run_untraced(Router.__call__)
