"""Observers: the hooks of a watch's modules, its parameters, and the sites that they feed."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.after_step import AfterStep
from hookstats.hooks.attention import ATTENTION, Attention
from hookstats.hooks.channels import Rule, WithIntegers, channel_rule, parameter_rule, whole
from hookstats.hooks.choices import Choices
from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.dynamo import compiled_callers, reset_compiled
from hookstats.hooks.inert import marked
from hookstats.hooks.modules import ModuleHook, fastest
from hookstats.hooks.observe import Point
from hookstats.hooks.parameters import Parameters
from hookstats.hooks.routers import Routers
from hookstats.hooks.selection import Selection
from hookstats.hooks.sharding import Sharding
from hookstats.hooks.widths import Sites, Suffixes, Widths
from hookstats.records.keys import in_phase
from hookstats.records.replicas import CHECKSUM
from hookstats.watching.settings import OPTIMIZER_STATE, PARAMETER_KINDS, Settings


class _Watched(NamedTuple):
    """A module that has hooks, which is not kept alive."""

    name: str
    module: weakref.ref[nn.Module]
    kinds: Collection[str]
    rule: Rule
    suffixes: defaultdict[str, defaultdict[str, Suffixes]]
    """By the kind of the values, and the path of the tensor: phases and gradients share them."""
    sites: list[Sites]
    """Those of training."""


class Observers:
    """What feeds the sites of a watch."""

    def __init__(self, buffers: DoubleBuffer, settings: Settings, sharding: Sharding) -> None:
        self._buffers = buffers
        self._settings = settings
        self._sharding = sharding
        self._watched: list[_Watched] = []
        self._sites: list[Sequence[Sites | Widths]] = []  # by module and parameter
        self._of_phases: list[Sites] = []
        self.phases = [""]
        """The names of phases by their numbers; 0 is training."""
        self.parameters = Parameters(buffers)
        self.after_step = AfterStep(buffers, self.parameters)
        self.attention = Attention(buffers, sharding, self.phases)
        self._choices = Choices(buffers, sharding)

    def add_parameter(self, selection: Selection, name: str) -> None:
        """Have a parameter observed, as the settings say."""
        rule = parameter_rule(selection.parameters[name])
        suffixes = Suffixes()
        sites = {
            kind: Widths(self._buffers, name, kind, rule, suffixes, self._sharding)
            for kind in PARAMETER_KINDS
            if kind in self._settings.kinds
        }
        states = None
        if OPTIMIZER_STATE in self._settings.kinds:
            states = Sites(self._buffers, name, OPTIMIZER_STATE, rule, sharding=self._sharding)
        if CHECKSUM in self._settings.kinds:
            sites[CHECKSUM] = Widths(self._buffers, name, CHECKSUM, whole, sharding=self._sharding)
        self._sites.append([*sites.values(), *([] if states is None else [states])])
        owner, key = selection.owners[name]
        self.parameters.add(owner, key, sites, states)

    def attach(self, selection: Selection, name: str) -> list[RemovableHandle]:
        """Register the hooks of a module, as the settings say; a ScriptModule takes none."""
        module = selection.modules[name]
        rule = channel_rule(module, self._settings.channel_dim)
        return self._attach(name, module, self._settings.kinds, rule)

    def attach_model_inputs(self, name: str, model: nn.Module) -> list[RemovableHandle]:
        """Register the hook of a model's inputs, integers included."""
        rule = WithIntegers(channel_rule(model, self._settings.channel_dim))
        return self._attach(name, model, ("input",), rule)

    def attach_attention(self, selection: Selection) -> list[RemovableHandle]:
        """Have the attention of the modules recorded, if the settings say so."""
        if ATTENTION not in self._settings.kinds:
            return []
        modules = {n: m for n, m in selection.all_modules.items() if selection.wants(n, m)}
        return [self.attention.attach(modules)]

    def attach_choices(
        self, selection: Selection, log: Callable[[str, Tensor], object]
    ) -> Iterator[tuple[nn.Module, RemovableHandle]]:
        """Have the choices of modules recorded, and the entropy of routers handed to `log`, if
        outputs are recorded: the modules with hooks for it."""
        if "output" in self._settings.kinds:
            wanted = {n: m for n, m in selection.all_modules.items() if selection.wants(n, m)}
            yield from self._choices.attach(wanted)
            yield from Routers(self._buffers, log).attach(wanted, self._ran)

    def _ran(self, name: str) -> bool:
        """Whether anything in a module has run in a recorded step."""
        inside = (one for one in self._watched if one.name.startswith(f"{name}."))
        return any(sites.called for one in inside for sites in one.sites)

    def attach_point(self, name: str, point: Point) -> list[RemovableHandle]:
        """Register the hooks of a point of `observe`, those of the phases that there are, too."""
        channel_dim = point.channel_dim
        rule = channel_rule(
            point, self._settings.channel_dim if channel_dim == "auto" else channel_dim
        )
        handles = self._attach(name, point, self._settings.kinds, rule)
        watched = self._watched[-1]
        for number in range(1, len(self.phases)):
            handles += self._register(point, watched, self._of_phases, number)
        return handles

    def _attach(
        self, name: str, module: nn.Module, kinds: Collection[str], rule: Rule
    ) -> list[RemovableHandle]:
        suffixes = defaultdict[str, defaultdict[str, Suffixes]](lambda: defaultdict(Suffixes))
        watched = _Watched(name, weakref.ref(module), kinds, rule, suffixes, [])
        self._watched.append(watched)
        self._sites.append(watched.sites)
        return self._register(module, watched, watched.sites, 0)

    def attach_phase(self, phase: str) -> list[tuple[nn.Module, list[RemovableHandle]]]:
        """Register the hooks of a phase on all modules that have hooks. What is compiled already is
        compiled again, with these hooks."""
        number = len(self.phases)
        self.phases.append(phase)
        found = [(watched, watched.module()) for watched in self._watched]
        there = [(watched, module) for watched, module in found if module is not None]
        made = [
            (module, self._register(module, watched, self._of_phases, number))
            for watched, module in there
        ]
        reset_compiled({type(module) for _, module in there})
        return made

    def _register(
        self, module: nn.Module, watched: _Watched, sites: list[Sites], phase: int
    ) -> list[RemovableHandle]:
        """Register the hooks of a module for the calls of a phase; their sites go to `sites`."""
        before, after = (self._hook(of, watched, sites, phase) for of in ("input", "output"))
        handles: list[RemovableHandle] = []
        if isinstance(module, torch.jit.ScriptModule):
            return handles
        if before is not None:
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
            handles.append(marked(handle))
        if after is not None:
            handles.append(module.register_forward_hook(after))
        return handles

    def _hook(
        self, of: str, watched: _Watched, sites: list[Sites], phase: int
    ) -> Callable[..., Any] | None:
        """The callable to register with a module; None if none of the hook's kinds is watched.

        of: "input" or "output".
        """
        name, rule, suffixes = watched.name, watched.rule, watched.suffixes[of]

        def made(kind: str) -> Sites | None:
            if kind not in watched.kinds:
                return None
            kind = in_phase(self.phases[phase], kind)
            return Sites(self._buffers, name, kind, rule, suffixes, self._sharding)

        values, gradients = made(of), made(f"grad_{of}")
        if values is None and gradients is None:
            return None
        sites += [one for one in (values, gradients) if one is not None]
        return fastest(ModuleHook(self._buffers, values, gradients, phase, of_inputs=of == "input"))

    def gradients(self) -> int:
        """How many gradients of modules' tensors have come so far, compiled graphs aside."""
        with self._buffers.lock:
            every = [one for one in chain(*self._sites) if isinstance(one, Sites)]
            return sum([site.counts.backwards for sites in every for site in sites.sites()])

    def uncounted(self) -> list[str]:
        """The names of the modules that compiled code calls, of which no call was counted; waits
        for the devices."""
        counted: list[_Watched] = []
        silent: list[_Watched] = []
        for one in self._watched:
            (counted if any(sites.called for sites in one.sites) else silent).append(one)
        # Compiled code tells of the classes that it calls: where others of the class were counted,
        # it may call these.
        types = {type(one.module()) for one in silent}
        types -= {type(one.module()) for one in counted}
        callers = compiled_callers([cls for cls in types if issubclass(cls, nn.Module)])
        compiled = set[type[nn.Module]]().union(*(called for _, called in callers))
        return [
            one.name
            for one in silent
            if type(one.module()) in compiled or any(sites.traced for sites in one.sites)
        ]

    def rows(self) -> list[SiteCoverage]:
        """The rows of the coverage."""
        with self._buffers.lock:
            return [row for sites in self._with_rows() for row in sites.rows()]

    def __len__(self) -> int:
        """The number of sites; as in the coverage, a module's kind without tensors is one."""
        return sum(max(1, len(one.sites())) for one in self._with_rows())

    def _with_rows(self) -> Iterable[Sites | Widths]:
        """What has rows in the coverage: of phases and choices, where there were tensors."""
        some = (sites for sites in (*self._of_phases, *self._choices.sites) if sites)
        return chain(*self._sites, some, self.attention.sites())
