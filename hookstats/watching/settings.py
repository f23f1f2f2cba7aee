"""Settings: what a watch is to record; the arguments of watch() after their checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookstats._torch import takes_step_hooks
from hookstats.hooks.attach import MODULE_KINDS, check_kinds, check_model
from hookstats.hooks.attention import ATTENTION
from hookstats.hooks.channels import ChannelDim, check_channel_dim
from hookstats.hooks.noise_scale import NOISE_SCALE
from hookstats.hooks.selection import Selection
from hookstats.records.replicas import CHECKSUM
from hookstats.runs.kept_channels import CHOICES
from hookstats.stats.arguments import check_integer, check_optional_integer
from hookstats.stats.bins import EXPECTED_BINS, LinearBins, LogBins
from hookstats.stats.printable import shown

PARAMETER_KINDS = ("param", "param_grad", "update")
OPTIMIZER_STATE = "optimizer_state"
KINDS = (
    *(*MODULE_KINDS, *PARAMETER_KINDS),
    *(OPTIMIZER_STATE, ATTENTION, CHECKSUM, NOISE_SCALE),
)
"""The kinds of tensors that can be watched."""

KINDS_BY_DEFAULT = ("output", "grad_output", "param_grad")
"""What is watched by default, beside the inputs of the models."""

AUTO = "auto"
"""The value of `every` by which the budget decides, see `schedule`."""


def with_default(kinds: Collection[str] | None) -> tuple[Collection[str], bool]:
    """The kinds that `kinds` stands for, and whether those by default are among them: where it is
    None, or has "default"."""
    if kinds is None:
        return KINDS_BY_DEFAULT, True
    if isinstance(kinds, str) or not isinstance(kinds, Collection) or "default" not in kinds:
        return kinds, False
    others = [kind for kind in kinds if kind not in ("default", *KINDS_BY_DEFAULT)]
    return (*KINDS_BY_DEFAULT, *others), True


class Settings(NamedTuple):
    """What a watch records, as `watch` documents its arguments."""

    kinds: Collection[str]
    bins: LinearBins | LogBins | None
    channel_bins: LinearBins | LogBins | None
    channel_dim: ChannelDim
    every: int | str = AUTO
    budget: float = 0.03
    channels: str = "incidents"
    mask: str | None = None

    def checked(self) -> Settings:
        """The settings, with `every` as an int.

        Raises:
            ValueError: an argument is wrong; the message names the first one.
        """
        check_kinds(self.kinds, KINDS)
        for name in ("bins", "channel_bins"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (LinearBins, LogBins)):
                raise ValueError(f"{name} = {value!r}: expected {EXPECTED_BINS}")
        check_channel_dim(self.channel_dim)
        if self.channels not in CHOICES:
            allowed = ", ".join(map(repr, CHOICES))
            raise ValueError(f"channels = {self.channels!r}: expected {allowed}")
        if not (isinstance(self.budget, (int, float)) and 0 < self.budget < 1):
            raise ValueError(f"budget = {self.budget!r}: expected a share, above 0 and below 1")
        if self.mask is not None and not isinstance(self.mask, str):
            raise ValueError(
                f"mask = {self.mask!r}: expected the name of an argument, or None; a tensor goes "
                "into a context, `with watch.mask(tensor)`"
            )
        return self._replace(every=_check_every(self.every))

    def header(self, models: Mapping[str, nn.Module], selection: Selection) -> dict[str, Any]:
        """What is recorded of which models, as JSON-able types: the header of the run directory."""
        bins, channel_bins = self.bins, self.channel_bins
        channel_dim: Any = self.channel_dim
        if isinstance(channel_dim, Mapping):
            channel_dim = {cls.__qualname__: dim for cls, dim in channel_dim.items()}
        classes = {name: type(model).__qualname__ for name, model in models.items()}
        return {
            "model": ", ".join(classes.values()),
            **({} if list(models) == [""] else {"models": classes}),
            "modules": {name: type(module).__name__ for name, module in selection.modules.items()},
            "parameters": {
                name: None if is_lazy(parameter) else list(parameter.shape)
                for name, parameter in selection.parameters.items()
            },
            "kinds": list(self.kinds),
            "bins": bins and bins.to_dict(),
            "channel_bins": channel_bins and channel_bins.to_dict(),
            "channel_dim": channel_dim,
            "every": self.every if isinstance(self.every, int) else 1,
            "channels": self.channels,
            **({"budget": self.budget} if self.every == AUTO else {}),
            **({} if self.mask is None else {"mask": self.mask}),
            "torch": str(torch.__version__),
        }


def _check_every(every: object) -> int | str:
    """`every` as an int, or "auto"."""
    if every == AUTO:
        return AUTO
    try:
        return check_integer("every", every, 1)
    except ValueError:
        raise ValueError(
            f'every = {every!r}: expected "auto", or an integer of 1 or more'
        ) from None


def _kind_of(value: object) -> str:
    """A value in an error: its class, where its text may be long."""
    if isinstance(value, (nn.Module, Optimizer, torch.Tensor)):
        return f"a {type(value).__name__}"
    return shown(value)


def as_optimizers(optimizer: Any) -> list[Optimizer]:
    """The optimizers that `optimizer`, an optimizer, a sequence of them or None, stands for.

    Raises:
        ValueError: it is of another type, or has the same optimizer twice.
    """
    if optimizer is None:
        return []
    several = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    found = [unwrapped(one) for one in several]
    if len({id(one) for one in found}) < len(found):
        raise ValueError("optimizer: the same one twice, expected each once")
    return found


_WRAPPED = ("optimizer", "base_optimizer", "_base_optimizer", "original_optimizer", "base")
"""What wrappers call the optimizer that they have step: those of Accelerate, Lightning, DeepSpeed;
of SAM; of timm's Lookahead; of Opacus; of schedule-free optimizers."""


def _is_optimizer(one: object) -> bool:
    return isinstance(one, Optimizer)


def _inner(wrapper: Any) -> Optimizer | None:
    """The optimizer that a wrapper has step: under a usual name, or, where the wrapper has no step
    hooks itself, under any."""
    held = [getattr(wrapper, name, None) for name in _WRAPPED]
    if not takes_step_hooks(wrapper):
        held += getattr(wrapper, "__dict__", {}).values()
    return next(filter(_is_optimizer, held), None)


def unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that steps: `optimizer`, or the one that it wraps.

    Raises:
        ValueError: it is no optimizer, and wraps none.
    """
    found = optimizer
    while inner := _inner(found):
        found = inner
    if isinstance(found, Optimizer) and takes_step_hooks(found):
        return found
    hint = ""
    if isinstance(optimizer, (torch.Tensor, Iterator, dict)):  # a dict is one of `param_groups`
        hint = "; did you mean the optimizer that has these parameters?"
    elif isinstance(optimizer, nn.Module):
        hint = "; several models are a list: watch([model, other], optimizer)"
    elif isinstance(optimizer, (str, Path)):
        hint = f"; did you mean out={str(optimizer)!r}?"
    elif callable(optimizer):
        hint = "; did you mean what it returns?"
    raise ValueError(
        f"optimizer has {_kind_of(optimizer)}: expected a torch.optim.Optimizer, several, or "
        f"None{hint}"
    )


def as_models(model: Any) -> dict[str, nn.Module]:
    """The models that `model` stands for, by name: a model has the name "", the models of a
    sequence their places "0", "1", ..., those of a mapping their keys.

    Raises:
        ValueError: it is none of these, or a name cannot begin that of a site.
    """
    if isinstance(model, Mapping):
        named = dict(model)
    elif isinstance(model, (list, tuple)):
        named = {str(place): one for place, one in enumerate(model)}
    else:
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"model has {_kind_of(model)}: expected a torch.nn.Module, as in watch(model, "
                "optimizer)"
            )
        check_model(model)
        return {"": model}
    if not named:
        raise ValueError(f"model = {model!r}: expected one or more")
    for name, one in named.items():
        if not (isinstance(name, str) and name and "." not in name and name != "module"):
            raise ValueError(f"model has the name {name!r}: expected one without dots")
        check_model(one)
    if len({id(one) for one in named.values()}) < len(named):
        raise ValueError("model: the same one twice, expected each once")
    return named


class _Together(nn.Module):
    """Several models as one module, which is never called: it gives their sites names."""


def models_with_inputs(
    models: Mapping[str, nn.Module], selection: Selection
) -> dict[str, nn.Module]:
    """The models whose own inputs are recorded by default, by name: all that are not excluded and
    take hooks. A model without a forward, as `nn.ModuleDict`, is never called."""
    return {
        name: model
        for name, model in models.items()
        if not (isinstance(model, torch.jit.ScriptModule) or selection.excludes(name, model))
        and getattr(model.forward, "__func__", None) is not nn.Module.forward
    }


def together(models: Mapping[str, nn.Module]) -> nn.Module:
    """The module whose parts have the names of sites."""
    if list(models) == [""]:
        return models[""]
    root = _Together()
    root._modules.update(models)
    return root


def check_others(
    max_bytes: object, append: object, overwrite: object, mesh: object, sinks: object
) -> int | None:
    """Check the arguments of `watch` that are no settings; `max_bytes` as an int, or None.

    Raises:
        ValueError: one is wrong, such as max_bytes = "10GB"; the message names it.
    """
    for name, value in (("append", append), ("overwrite", overwrite)):
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r}: expected True or False")
    if append and overwrite:
        raise ValueError("append = overwrite = True: expected at most one of them")
    if not (mesh is None or (isinstance(mesh, DeviceMesh) and mesh.mesh_dim_names)):
        raise ValueError(f"mesh = {mesh!r}: expected a DeviceMesh with mesh_dim_names, or None")
    if not (isinstance(sinks, Sequence) and all(map(callable, sinks))):
        raise ValueError(f"sinks = {sinks!r}: expected a sequence of callables")
    try:
        return check_optional_integer("max_bytes", max_bytes, 1)
    except ValueError as error:
        raise ValueError(f"{error}; 10 GiB are 10 << 30, 10 GB are 10 * 10**9") from None
