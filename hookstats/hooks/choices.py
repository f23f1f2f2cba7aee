"""Choices: what modules choose, such as experts or codes: integers that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.inert import Hook
from hookstats.hooks.leaves import Leaf, leaves
from hookstats.hooks.readable import classify, detour, own_dispatch
from hookstats.hooks.sharding import Sharding
from hookstats.hooks.widths import Sites
from hookstats.records.keys import CHOICES
from hookstats.stats.messages import error_text, notify

MOST = 4096
"""Among how many a choice is one; token ids are among more."""


class Choices:
    """Feeds the sites of the kind "choices": of each value that a module may choose, its share.

    A module may choose that is not torch's own, and that has one codebook: one size for the
    first dimension of its matrices (weights, floating buffers, embeddings), which is the number of
    values, 2 to `MOST`. It does if a call returns integers.
    """

    def __init__(self, buffers: DoubleBuffer, sharding: Sharding) -> None:
        self._buffers = buffers
        self._sharding = sharding
        self.sites: list[Sites] = []
        """By module that may choose."""

    def attach(
        self, modules: Mapping[str, nn.Module]
    ) -> Iterator[tuple[nn.Module, RemovableHandle]]:
        """Record what these modules choose: the modules with hooks for it."""
        for name, module in modules.items():
            many = choices_of(module)
            if many is not None:
                sites = Sites(self._buffers, name, CHOICES, _values, sharding=self._sharding)
                self.sites.append(sites)
                yield module, module.register_forward_hook(_ChoiceHook(sites, many))


class OutputHook(Hook, ABC):
    """Forward hook that looks at what a module returns in recorded calls of the training, until a
    call has nothing to look at, or it fails."""

    __slots__ = ("_buffers", "_is_done", "_what")

    def __init__(self, buffers: DoubleBuffer, what: str) -> None:
        """what: is looked at, for a warning."""
        self._buffers = buffers
        self._what = what
        self._is_done = False

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        buffers = self._buffers
        if is_dynamo_compiling() or self._is_done:
            return
        if buffers.phase or not buffers.is_observing() or detour() is not None:
            return
        with buffers.lock, buffers.guard, own_dispatch(), torch.no_grad():
            try:
                self._is_done = not self.look(list(leaves(output)))
            except torch.AcceleratorError:
                raise
            except Exception as error:  # such as that of a container of the user
                self._is_done = True
                notify({}, self._what, error_text(error))

    @abstractmethod
    def look(self, found: Sequence[Leaf]) -> bool:
        """Look at the tensors of a call; whether to look at later calls."""


def is_number_of(tensor: Tensor) -> bool:
    """Whether a tensor may have the numbers of what was chosen."""
    return tensor.dtype in (torch.int32, torch.int64) and tensor.numel() > 0


class _ChoiceHook(OutputHook):
    """Of a module that may choose among so many."""

    __slots__ = ("_many", "_sites")

    def __init__(self, sites: Sites, many: int) -> None:
        super().__init__(sites.buffers, f"recording what {sites.name!r} chooses")
        self._sites = sites
        self._many = many

    def look(self, found: Sequence[Leaf]) -> bool:
        chosen = [leaf for leaf in found if is_number_of(leaf[1])]
        for path, tensor in chosen:
            self._observe(path, tensor)
        return bool(chosen)

    def _observe(self, path: str, tensor: Tensor) -> None:
        site = self._sites[path].first
        own = classify(tensor)
        if site.error or isinstance(own, str):
            return
        try:
            shares = _shares(own, self._many)
        except Exception as error:
            site.disable(error)
            return
        site.counts.count(*site.accumulate(shares, None))


def _shares(chosen: Tensor, many: int) -> Tensor:
    """Of each of `many` values its share of what was chosen: float32 [many]. Others are left out,
    and no device is waited for."""
    flat = chosen.detach().reshape(-1).long()
    places = torch.where((flat >= 0) & (flat < many), flat, many)
    counts = torch.zeros(many + 1, device=flat.device)
    ones = torch.ones((), device=flat.device).expand(len(flat))
    return counts.index_add_(0, places, ones)[:many] / len(flat)


def choices_of(module: nn.Module) -> int | None:
    """Among how many a module may choose; None if it may not choose."""
    if type(module).__module__.startswith("torch."):
        return None
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    own += [child.weight for child in module.children() if isinstance(child, nn.Embedding)]
    tables = [t for t in own if not is_lazy(t) and t.dim() == 2 and t.is_floating_point()]
    sizes = {table.shape[0] for table in tables}
    many = sizes.pop() if len(sizes) == 1 else 0
    return many if 2 <= many <= MOST else None


def lists_of(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """The lists of two modules or more of one type, such as experts, and how many each has."""
    lists = {name: list(m) for name, m in modules.items() if isinstance(m, nn.ModuleList)}
    return {name: len(m) for name, m in lists.items() if len(m) > 1 and len(set(map(type, m))) == 1}


def _values(ndim: int) -> int:
    """The rule for the channels of shares: each value is one."""
    return 0
