"""Observers: the hooks of a watch's modules, its parameters, and the sites that they feed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats.arena.arena import Arena
from hookstats.hooks.channels import Rule, WithIntegers, channel_rule, parameter_rule
from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.modules import InputHook, OutputHook
from hookstats.hooks.optimizer_states import OptimizerStates
from hookstats.hooks.parameters import Parameters
from hookstats.hooks.per_call import module_hook
from hookstats.hooks.phases import Phases
from hookstats.hooks.selection import Selection
from hookstats.hooks.silence import Silence
from hookstats.hooks.spread import Spread
from hookstats.hooks.updates import Updates
from hookstats.hooks.widths import Sites, Suffixes, Widths
from hookstats.records.keys import site_name
from hookstats.watching.settings import OPTIMIZER_STATE, PARAMETER_KINDS, Settings


class Observers:
    """What feeds the sites of a watch."""

    def __init__(self, arena: Arena, settings: Settings, spread: Spread, phases: Phases) -> None:
        self._arena = arena
        self._settings = settings
        self._spread = spread
        self._phases = phases
        self._sites: list[Sequence[Sites | Widths]] = []  # by module and parameter
        self.parameters = Parameters(arena)
        self.updates = Updates(arena)
        self.states = OptimizerStates(arena)
        self.silence = Silence(arena)

    def add_parameter(self, selection: Selection, name: str) -> None:
        """Have a parameter observed, as the settings say."""
        rule = parameter_rule(selection.parameters[name])
        suffixes = Suffixes()
        sites = {
            kind: Widths(self._arena, name, kind, rule, suffixes, self._spread)
            for kind in PARAMETER_KINDS
            if kind in self._settings.kinds
        }
        self._sites.append(list(sites.values()))
        owner, key = selection.owners[name]
        self.parameters.add(owner, key, sites.get("param"), sites.get("param_grad"))
        if "update" in sites:
            self.updates.add(owner, key, sites["update"])
        if OPTIMIZER_STATE in self._settings.kinds:
            states = Sites(self._arena, name, OPTIMIZER_STATE, rule, spread=self._spread)
            self._sites.append([states])
            self.states.add(owner, key, states)

    def attach(self, selection: Selection, name: str) -> Iterator[RemovableHandle]:
        """Register the hooks of a module, as the settings say; a ScriptModule takes none."""
        module, name = selection.modules[name], site_name(name, selection.modules)
        made: list[Sites] = []  # and those of later calls
        self._sites.append(made)
        rule = channel_rule(module, self._settings.channel_dim)
        kinds = self._settings.kinds
        before, after = (
            self._hook(kind, name, kinds, rule, made) for kind in (InputHook, OutputHook)
        )
        if isinstance(module, torch.jit.ScriptModule):
            return
        if made:
            self.silence.add(name, module, made)
        if before is not None:
            yield module.register_forward_pre_hook(before, with_kwargs=True)
        if after is not None:
            yield module.register_forward_hook(after)

    def attach_door(self, name: str, model: nn.Module) -> Iterator[RemovableHandle]:
        """Register the hook of a model's inputs, integers included."""
        made: list[Sites] = []
        self._sites.append(made)
        rule = WithIntegers(channel_rule(model, self._settings.channel_dim))
        hook = self._hook(InputHook, name, ("input",), rule, made)
        if hook is not None:
            yield model.register_forward_pre_hook(hook, with_kwargs=True)

    def _hook(
        self,
        type: type[InputHook] | type[OutputHook],
        name: str,
        kinds: Collection[str],
        rule: Rule,
        made: list[Sites],
    ) -> Callable[..., Any] | None:
        per_call = self._settings.per_call
        settled = type, self._arena, name, kinds, rule, made, self._spread
        return module_hook(*settled, per_call=per_call, phases=self._phases)

    def rows(self) -> list[SiteCoverage]:
        """The rows of the coverage."""
        with self._arena.lock:
            return [row for group in self._sites for sites in group for row in sites.rows()]

    def __len__(self) -> int:
        """The number of sites; as in the coverage, a module's kind without tensors is one."""
        return sum(max(1, len(one.sites())) for group in self._sites for one in group)
