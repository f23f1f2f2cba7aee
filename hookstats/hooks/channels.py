"""Which dimension of a tensor holds the channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookstats._torch import is_flattened
from hookstats.stats.arguments import check_optional_integer

ChannelDim = str | int | None | Mapping[type[nn.Module], int | None]
"""The argument channel_dim of `watch`: "auto", a dimension, None, or dimensions by module type."""

Rule = Callable[[int], int | None]
"""From a tensor's number of dimensions to its channel dimension; None for the whole tensor."""

_NAMES = """Conv ConvTranspose InstanceNorm AvgPool MaxPool LPPool FractionalMaxPool
    AdaptiveAvgPool AdaptiveMaxPool MaxUnpool"""
# By number of spatial dimensions: the channels come right before these, with or without a batch.
_SPATIAL: dict[int, tuple[type[nn.Module], ...]] = {
    n: tuple(getattr(nn, f"{name}{n}d") for name in _NAMES.split() if hasattr(nn, f"{name}{n}d"))
    for n in (1, 2, 3)
}
_BATCHED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm)


def check_channel_dim(channel_dim: object) -> None:
    """Raise a ValueError where `channel_dim` is not a ChannelDim."""
    expected = '"auto", an int, None, or a mapping of module types to ints or None'
    if isinstance(channel_dim, Mapping):
        for key, dim in channel_dim.items():
            if not (isinstance(key, type) and issubclass(key, nn.Module) and _is_dim(dim)):
                raise ValueError(f"channel_dim has {key!r}: {dim!r}, expected {expected}")
    elif not (channel_dim == "auto" or _is_dim(channel_dim)):
        raise ValueError(f"channel_dim = {channel_dim!r}: expected {expected}")


def channel_rule(module: nn.Module, channel_dim: ChannelDim) -> Rule:
    """The channel dimension of the inputs and outputs of `module`, and of their gradients.

    A mapping holds for modules of its types, the nearest base class first; "auto" for all others.
    "auto" is dimension 1 for convolutions, pooling, batch, instance and group norms (0 without a
    batch dimension); otherwise 1 for tensors of 4 or 5 dimensions, and the last for all others.
    A tensor without dimensions is one channel.
    """
    # A lazy module counts as the module that it will become.
    kind: type[nn.Module] = getattr(module, "cls_to_become", None) or type(module)
    if isinstance(channel_dim, Mapping):
        for base in kind.__mro__:
            if base in channel_dim:
                return _fixed(channel_dim[base])
    elif not isinstance(channel_dim, str):
        return _fixed(channel_dim)
    for spatial, types in _SPATIAL.items():
        if issubclass(kind, types):
            return lambda ndim: None if ndim == 0 else max(ndim - 1 - spatial, 0)
    if issubclass(kind, _BATCHED):
        return lambda ndim: None if ndim == 0 else min(1, ndim - 1)
    return lambda ndim: None if ndim == 0 else 1 if ndim in (4, 5) else ndim - 1


def parameter_rule(parameter: Tensor) -> Rule:
    """The channel dimension of `parameter` and of its gradient: 0.

    A parameter that FSDP1 flattened is a run of elements, which differs between ranks: it has no
    channels, and so has a parameter that is flattened later.
    """
    if is_flattened(parameter):
        return whole
    if is_lazy(parameter):
        return _fixed(0)
    own = parameter.dim()
    return lambda ndim: 0 if ndim == own > 0 else None


class WithIntegers:
    """A rule for tensors that may have integers, which are one channel as a whole."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, ndim: int) -> int | None:
        return self._rule(ndim)


def whole(ndim: int) -> int | None:
    """The rule for tensors that are one channel as a whole."""
    return None


def _fixed(dim: int | None) -> Rule:
    return lambda ndim: None if ndim == 0 else dim


def _is_dim(value: object) -> bool:
    try:
        check_optional_integer("channel_dim", value, None)
    except ValueError:
        return False
    return True
