"""Settings: what a watch is to record; the arguments of watch() after their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookstats.hooks.attach import MODULE_KINDS, check_kinds
from hookstats.hooks.channels import ChannelDim, check_channel_dim
from hookstats.hooks.selection import Selection
from hookstats.stats.arguments import check_integer, check_moments
from hookstats.stats.bins import LinearBins, LogBins

PARAMETER_KINDS = ("param", "param_grad")
KINDS = MODULE_KINDS + PARAMETER_KINDS
"""The kinds of tensors that can be watched."""


class Settings(NamedTuple):
    """What a watch records, as `watch` documents its arguments."""

    kinds: Collection[str]
    bins: LinearBins | LogBins | None
    channel_bins: LinearBins | LogBins | None
    channel_dim: ChannelDim
    every: int
    moments: int

    def checked(self) -> Settings:
        """The settings, with `every` and `moments` as ints.

        Raises:
            ValueError: an argument is wrong; the message names the first one.
        """
        check_kinds(self.kinds, KINDS)
        for name in ("bins", "channel_bins"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (LinearBins, LogBins)):
                raise ValueError(f"{name} = {value!r}: expected LinearBins, LogBins or None")
        check_channel_dim(self.channel_dim)
        return self._replace(
            every=check_integer("every", self.every, 1), moments=check_moments(self.moments)
        )

    def header(self, model: nn.Module, selection: Selection) -> dict[str, Any]:
        """What is recorded of which model, as JSON-able types: the header of the run directory."""
        channel_dim: Any = self.channel_dim
        if isinstance(channel_dim, Mapping):
            channel_dim = {cls.__qualname__: dim for cls, dim in channel_dim.items()}
        return {
            "model": type(model).__qualname__,
            "modules": {name: type(module).__name__ for name, module in selection.modules.items()},
            "parameters": {
                name: None if is_lazy(parameter) else list(parameter.shape)
                for name, parameter in selection.parameters.items()
            },
            "kinds": list(self.kinds),
            "bins": self.bins and self.bins.to_dict(),
            "channel_bins": self.channel_bins and self.channel_bins.to_dict(),
            "channel_dim": channel_dim,
            "every": self.every,
            "moments": self.moments,
            "torch": str(torch.__version__),
        }


def as_optimizers(optimizer: Any) -> list[Optimizer]:
    """The optimizers that `optimizer`, an optimizer, a sequence of them or None, stands for.

    Raises:
        ValueError: it is of another type, or has the same optimizer twice.
    """
    several = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in several:
        if not (isinstance(one, Optimizer) or optimizer is None):
            raise ValueError(
                f"optimizer has {one!r}: expected a torch.optim.Optimizer, several, or None"
            )
    if len({id(one) for one in several}) < len(several):
        raise ValueError("optimizer: the same one twice, expected each once")
    return [] if optimizer is None else several


def check_sinks(sinks: object) -> None:
    """Raise a ValueError unless `sinks` is a sequence of callables."""
    if not (isinstance(sinks, Sequence) and all(map(callable, sinks))):
        raise ValueError(f"sinks = {sinks!r}: expected a sequence of callables")
