"""Routers: how sure routers are of their experts: the entropy of each token, in the mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.choices import OutputHook, choices_of, is_number_of, lists_of
from hookstats.hooks.leaves import Leaf
from hookstats.hooks.readable import classify

ELEMENTS = 1 << 16
"""The most elements of a router's output that are read, of tokens at even distances."""


class Routers:
    """Finds routers, and hands on what their outputs say in recorded steps.

    A router has a matrix [n, d], and gives a number for each of n experts. Beside it is a list of n
    modules that take d features, too, and run after it; or it returns what it chose (see
    `Choices`).
    """

    def __init__(self, buffers: DoubleBuffer, log: Callable[[str, Tensor], object]) -> None:
        """log: takes the name of a router, and what `entropy_of` makes a number of."""
        self.buffers = buffers
        self.log = log

    def attach(
        self, modules: Mapping[str, nn.Module], ran: Callable[[str], bool]
    ) -> Iterator[tuple[nn.Module, RemovableHandle]]:
        """Look at the routers among modules: these with their hooks.
        ran: whether anything in a list has run so far."""
        lists = lists_of(modules)
        for name, module in modules.items():
            for table in _matrices(module, recurse=False)[:1] if name else ():
                many, features = table.shape
                experts = [
                    of
                    for of, size in lists.items()
                    if of.rpartition(".")[0] == name.rpartition(".")[0] and size == many
                    if features in [m.shape[1] for m in _matrices(next(modules[of].children()))]
                ]
                if experts or (many != features and choices_of(module) == many):
                    hook = _RouterHook(self, name, many, experts, ran)
                    yield module, module.register_forward_hook(hook)


class _RouterHook(OutputHook):
    """Of a module that may be a router of so many experts."""

    __slots__ = ("_experts", "_is_router", "_many", "_name", "_ran", "_routers")

    def __init__(
        self,
        routers: Routers,
        name: str,
        many: int,
        experts: list[str],
        ran: Callable[[str], bool],
    ) -> None:
        """experts: the lists beside it; without one, it is known by its choices."""
        super().__init__(routers.buffers, f"the router {name!r}")
        self._routers = routers
        self._name = name
        self._many = many
        self._experts = experts
        self._ran = ran
        self._is_router: bool | None = None  # until a call was looked at

    def look(self, found: Sequence[Leaf]) -> bool:
        tensors = [tensor for _, tensor in found]
        if self._is_router is None:
            chooses = any(map(is_number_of, tensors))
            self._is_router = not any(map(self._ran, self._experts)) if self._experts else chooses
        given = (x for x in tensors if x.is_floating_point() and x.shape[-1:] == (self._many,))
        scores = next(given, None)
        own = None if scores is None else classify(scores)
        if self._is_router and isinstance(own, Tensor) and own.numel():
            self._routers.log(self._name, entropies(own))
        return self._is_router


def entropies(given: Tensor) -> Tensor:
    """What `entropy_of` needs, without a wait for the device: float32 [4], which is the mean
    entropy of tokens if `given` [..., experts] are logits, that if they are probabilities, the
    least of them, and how far the sums of these are from 1."""
    rows = given.detach().reshape(-1, given.shape[-1])
    rows = rows[:: max(1, -(-rows.numel() // ELEMENTS))].float()
    logs = rows.log_softmax(-1)
    both = -torch.stack((logs.exp() * logs, torch.xlogy(rows, rows))).sum(-1).mean(-1)
    return torch.stack((*both, rows.min(), (rows.sum(-1) - 1).abs().amax()))


def entropy_of(found: Tensor) -> float:
    """The mean entropy of tokens in nats, of what `entropies` gives, on the host."""
    of_logits, of_shares, least, away = found.tolist()
    return float(of_shares if least >= 0 and away < 0.01 else of_logits)


def _matrices(module: nn.Module, *, recurse: bool = True) -> list[Tensor]:
    parameters = module.parameters(recurse)
    return [p for p in parameters if not is_lazy(p) and p.dim() == 2]
