"""PerCall: keeps the calls of a module in a step apart, each with sites and hooks of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from torch.compiler import is_dynamo_compiling

from hookstats._torch import current_graph_task_id, current_trace
from hookstats.arena.arena import Arena
from hookstats.hooks.channels import Rule
from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.inert import Hook
from hookstats.hooks.modules import InputHook, OutputHook, fastest
from hookstats.hooks.phases import Phases
from hookstats.hooks.router import Routed, Router
from hookstats.hooks.spread import Spread
from hookstats.hooks.widths import Sites, Suffixes
from hookstats.records.keys import in_phase

MAX_CALLS = 64
"""How many calls of a module in a step are told apart; all further ones are merged."""

ModuleHook = OutputHook | InputHook


class PerCall(Hook):
    """Hands the n-th call of a step to the n-th hook, `make`s it if need be.

    Calls of an evaluation, and those that recompute a checkpoint, are not numbered: the first hook
    counts them. In compiled code, the calls in one graph are numbered, as a graph does not know its
    step.
    """

    __slots__ = (
        "_arena",
        "_calls",
        "_fronts",
        "_hooks",
        "_make",
        "_step",
        "_trace",
        "_traced",
        "first",
    )

    def __init__(self, arena: Arena, make: Callable[[str], ModuleHook]) -> None:
        """make: from what the names of the call's sites end in."""
        self._arena = arena
        self._make = make
        self._hooks: list[ModuleHook] = []
        self._fronts: list[Callable[..., Any]] = []
        self._step = -1
        self._calls = itertools.count()
        self._trace: object = None
        self._traced = itertools.count()
        self._at(0)
        self.first = self._hooks[0]
        """The hook of the first call, which dynamo traces."""

    def __call__(self, *args: Any) -> None:
        if self._arena.recording:
            if is_dynamo_compiling():
                self.first(*args)
            else:
                self._front()(*args)

    def _front(self) -> Callable[..., Any]:
        """What handles this call."""
        if current_graph_task_id() != -1 or self._arena.is_evaluation():
            return self._fronts[0]
        if self._step != self._arena.closed:
            self._step, self._calls = self._arena.closed, itertools.count()
        return self._at(next(self._calls))

    def _at(self, call: int) -> Callable[..., Any]:
        call = min(call, MAX_CALLS)
        with self._arena.lock:
            while len(self._fronts) <= call:
                n = len(self._fronts)
                hook = self._make(f"@{n}" if n < MAX_CALLS else "@...")
                self._hooks[n:] = [hook]
                self._fronts.append(fastest(hook))
        return self._fronts[call]

    def key_of_call(self) -> str:
        """The key of the hook for the next call that dynamo traces."""
        trace = current_trace()
        if self._trace is not trace:
            self._trace, self._traced = trace, itertools.count()
        call = min(next(self._traced), MAX_CALLS)
        self._at(call)
        return self._hooks[call].traced.key


run_untraced(PerCall.__call__)


def module_hook(
    type: type[OutputHook] | type[InputHook],
    arena: Arena,
    name: str,
    kinds: Collection[str],
    rule: Rule,
    sites: list[Sites],
    spread: Spread | None = None,
    *,
    per_call: bool,
    phases: Phases,
) -> Callable[..., Any] | None:
    """The callable to register with a module; None if none of the hook's kinds is watched.

    sites: what the hook feeds is added there, also later, for the calls and phases that come.
    """
    values = "output" if type is OutputHook else "input"
    watched = [kind if kind in kinds else None for kind in (values, f"grad_{values}")]
    if not any(watched):
        return None

    widths: dict[str, defaultdict[str, Suffixes]] = {}  # the same in all phases

    def make(phase: str, suffix: str) -> ModuleHook:
        suffixes = widths.setdefault(suffix, defaultdict(Suffixes))
        made = [
            None
            if kind is None
            else Sites(arena, name + suffix, in_phase(phase, kind), rule, suffixes, spread)
            for kind in watched
        ]
        sites.extend(one for one in made if one is not None)
        return type(arena, *made)

    def routed(phase: str) -> Routed:
        if per_call:
            calls = PerCall(arena, partial(make, phase))
            return Routed(calls, calls.first, calls.key_of_call)
        hook = make(phase, "")
        return Routed(fastest(hook), hook, lambda: hook.traced.key)

    router = Router(arena, phases, routed)
    return router if per_call else fastest(router.first, router)
