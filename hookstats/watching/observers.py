"""Observers: the hooks of a watch's modules, its parameters, and the sites that they feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats.arena.arena import Arena
from hookstats.hooks.channels import channel_rule, parameter_rule
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
            states = Sites(self._arena, name, OPTIMIZER_STATE, rule)
            self._sites.append([states])
            self.states.add(owner, key, states)

    def attach(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Register the hooks of a module; a ScriptModule takes none."""
        rule = channel_rule(module, self._settings.channel_dim)
        made: list[Sites] = []  # and those of later calls
        kinds, per_call = self._settings.kinds, self._settings.per_call
        before, after = (
            module_hook(
                *(kind, self._arena, name, kinds, rule, made, self._spread),
                per_call=per_call,
                phases=self._phases,
            )
            for kind in (InputHook, OutputHook)
        )
        self._sites.append(made)
        if isinstance(module, torch.jit.ScriptModule):
            return
        if made:
            self.silence.add(module, made)
        if before is not None:
            yield module.register_forward_pre_hook(before, with_kwargs=True)
        if after is not None:
            yield module.register_forward_hook(after)

    def rows(self) -> list[SiteCoverage]:
        """The rows of the coverage."""
        with self._arena.lock:
            return [row for group in self._sites for sites in group for row in sites.rows()]

    def __len__(self) -> int:
        """The number of sites; as in the coverage, a module's kind without tensors is one."""
        return sum(max(1, len(one.sites())) for group in self._sites for one in group)
