"""Widths: the sites of one tensor of a module, one for each number of channels that it has had.

A module that is used in several places, such as the one ReLU of a bottleneck, may get tensors of
several widths. Statistics per channel of different widths cannot be merged, so that each width has
a site: the first one by the module's name, the others by that name and their width, as in
`relu[64ch]`. From the fifth width on, tensors of all further widths share one site, `relu[whole]`,
whose only channel is the whole tensor.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from hookstats._torch import jit_tracing_state
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.channels import Rule, WithIntegers, whole
from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.readable import local_shape, unreadable
from hookstats.hooks.sharding import Sharding
from hookstats.hooks.sites import Site, channels_of
from hookstats.records.keys import plain_kind

if TYPE_CHECKING:
    from hookstats import _hooks

MAX_LEAVES = 1024
"""The most tensors of one kind of a module that are told apart: keys that change from call to call,
such as the names of images, would otherwise fill the memory with sites."""

MAX_WIDTHS = 4
"""How many widths have sites with channels."""

WHOLE = "[whole]"


class Suffixes:
    """What the names of one tensor's sites end in, by width. Values and their gradients share it,
    so that what belongs together has the same name."""

    def __init__(self) -> None:
        self._by_width: dict[int, str] = {}

    @property
    def full(self) -> bool:
        """Whether all further widths share a site."""
        return len(self._by_width) >= MAX_WIDTHS

    def of(self, channels: int) -> str:
        """The suffix of a width, which is noted if it is new."""
        if channels not in self._by_width:
            if self.full:
                return WHOLE
            self._by_width[channels] = f"[{channels}ch]" if self._by_width else ""
        return self._by_width[channels]


class Widths:
    """The sites of one tensor of a module, or of one parameter.

    `first` is there from the beginning, and counts what cannot be observed. The others come with
    the first tensor of their width. Callers hold the double buffer's lock.
    """

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_kind",
        "_name",
        "_rule",
        "_sharding",
        "_sites",
        "_suffixes",
        "first",
    )

    def __init__(
        self,
        buffers: DoubleBuffer,
        name: str,
        kind: str,
        rule: Rule,
        suffixes: Suffixes | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        self._buffers = buffers
        self._name = name
        self._kind = kind
        self._rule = rule
        self._suffixes = suffixes or Suffixes()
        self._sharding = sharding
        self._sites: dict[str, Site] = {}
        self.first = self._site("")

    def at(self, tensor: Tensor) -> Site:
        """The site for `tensor`; the first one where none can observe it."""
        return self.find(tensor) or self.first

    def find(self, tensor: Tensor) -> Site | None:
        """The site for `tensor`; None where none can observe it."""
        if unreadable(tensor) is not None or is_lazy(tensor) or jit_tracing_state() is not None:
            return None  # a trace has no numbers for sizes
        shape = local_shape(tensor)
        site = self.find_like(shape, tensor.dtype, tensor.device)
        if site is not None and site.native is not None:
            site.native.set_expected_sizes(shape)
        return site

    def find_like(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Site | None:
        """The site for tensors like this; None where none can observe them.

        shape: -1 for sizes that vary.
        """
        found = channels_of(self._rule, shape, dtype, device)
        if isinstance(found, str):
            return None
        suffix = self._suffixes.of(found[1])
        return self._sites.get(suffix) or self._site(suffix)

    def fixed_dim(self, ndim: int, dtype: torch.dtype) -> int | None:
        """The dimension that has to be of one size in a compiled graph, if any."""
        of_channels = dtype.is_floating_point and not self._suffixes.full
        return self._rule(ndim) if of_channels else None

    def _site(self, suffix: str) -> Site:
        rule = self._rule
        if suffix == WHOLE:
            rule = WithIntegers(whole) if isinstance(rule, WithIntegers) else whole
        name, widths = self._name + suffix, weakref.ref(self)
        site = Site(self._buffers, name, self._kind, rule, widths, self._sharding)
        if plain_kind(self._kind) in ("grad_input", "grad_output"):
            # Until `note_sharding` sees a tensor that awaits a gradient, which C++ shows to Python.
            site.counts.disabled = True
        self._sites[suffix] = site
        return site

    @property
    def natives(self) -> list[_hooks.Site]:
        return [site.native for site in self._sites.values() if site.native is not None]

    def sites(self) -> list[Site]:
        return list(self._sites.values())

    def rows(self) -> list[SiteCoverage]:
        return [site.row() for site in self._sites.values()]


class Sites(dict[str, Widths]):
    """The sites of one kind of a module, by the paths of their leaves."""

    def __init__(
        self,
        buffers: DoubleBuffer,
        name: str,
        kind: str,
        rule: Rule,
        suffixes: defaultdict[str, Suffixes] | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """suffixes: by path; the kinds of values and of their gradients share them."""
        super().__init__()
        self.buffers = buffers
        self.name = name
        self.kind = kind
        self.rule = rule
        self._suffixes = defaultdict(Suffixes) if suffixes is None else suffixes
        self._sharding = sharding
        self.traced = False
        """Whether dynamo traced a call that compiled code is to count, or cannot."""

    def __missing__(self, path: str) -> Widths:
        full = len(self) >= MAX_LEAVES
        if full:
            path = "[...]"
            if path in self:
                return self[path]
        widths = self._make(path)
        if full:
            error = ValueError(f"the module has tensors by more than {MAX_LEAVES} paths")
            widths.first.disable(error)
        self[path] = widths
        return widths

    def _make(self, path: str) -> Widths:
        kind, suffixes = self.kind + path, self._suffixes[path]
        return Widths(self.buffers, self.name, kind, self.rule, suffixes, self._sharding)

    def sites(self) -> list[Site]:
        return [site for widths in self.values() for site in widths.sites()]

    @property
    def called(self) -> bool:
        """Whether any call of the module was counted; may wait for the devices."""
        return any(
            site.counts.forwards or any(site.graph.totals().values()) for site in self.sites()
        )

    def rows(self) -> list[SiteCoverage]:
        """One row per site; a single row of zeros if no tensor ever arrived."""
        every = list(self.values()) or [self._make("")]
        return [row for widths in every for row in widths.rows()]
