"""setup_of(): reads what a training run begins with, once, before its first step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookstats._torch import is_freed, is_plain
from hookstats.hooks.selection import Selection
from hookstats.rules.setup import UNLIKE, Group, Rows, Setup, Weight

_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_MANY = 8
"""Of how many values a row is at least whose size is not large or small by chance."""


def setup_of(selection: Selection, optimizers: Sequence[Optimizer]) -> Setup:
    """The watched parameters, read once, and the optimizers' groups.

    On a device this waits for the parameters' norms: two numbers and a row each.
    """
    groups = [(one, group) for one in optimizers for group in one.param_groups]
    members = {id(p): i for i, (_, group) in enumerate(groups) for p in group["params"]}
    modules = {name: type(module).__name__ for name, module in selection.modules.items()}
    return Setup(
        modules,
        tuple(
            _weight(name, parameter, members.get(id(parameter)))
            for name, parameter in selection.parameters.items()
        ),
        tuple(
            Group(
                "AdamW" if group.get("decoupled_weight_decay") else type(one).__name__,
                _number(group.get("momentum", 0.0)),
                _number(group.get("weight_decay", 0.0)),
                _number(group.get("eps", 0.0)),
                sum(p.numel() for p in group["params"] if not is_lazy(p)),
            )
            for one, group in groups
        ),
        {
            name: _number(getattr(module, "p", 0.0))
            for name, module in selection.modules.items()
            if isinstance(module, _DROPOUTS)
        },
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _weight(name: str, parameter: Tensor, group: int | None) -> Weight:
    lazy = is_lazy(parameter)
    shape = () if lazy else tuple(parameter.shape)
    dtype = str(parameter.dtype).removeprefix("torch.")
    unread = Weight(name, shape, dtype, parameter.requires_grad, group, None, False, None)
    if lazy:
        return unread
    values = parameter.detach()
    if not (is_plain(values) and values.numel() and values.is_floating_point()):
        return unread
    if values.is_meta or is_freed(values):
        return unread
    try:
        found, constant = _read(values)
    except RuntimeError:  # no memory, or an fp8 type, whose norms torch has not
        return unread
    return unread._replace(
        rms=float(found.square().mean().sqrt()),
        constant=constant,
        rows=_unlike(found, values[0].numel()) if values.dim() > 1 else None,
    )


def _read(values: Tensor) -> tuple[Tensor, bool]:
    """The rms of each row, float64 [rows] on the CPU, and whether all values are equal."""
    rows = values.reshape(len(values), -1) if values.dim() > 1 else values.reshape(1, -1)
    wide = torch.promote_types(values.dtype, torch.float32)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=wide) / rows.shape[1] ** 0.5
    found = norms.double().cpu()
    alike = values.numel() > 1 and bool(found.max() <= 1.00001 * found.min())
    return found, alike and bool(torch.eq(*torch.aminmax(rows)))  # another pass over values


def _unlike(rms: Tensor, width: int) -> Rows | None:
    """The rows that are unlike the others; rms: float64 [rows], on the CPU, of `width` values."""
    some = rms[rms > 0]
    if len(some) < 2 or len(rms) < 4:
        return None
    median = some.median()
    zero = rms == 0
    if width < _MANY and not zero.any():
        return None
    unlike = zero if zero.any() else (rms > UNLIKE * median) | (rms < median / UNLIKE)
    places = unlike.nonzero().flatten()
    if not len(places):
        return None
    ratio = rms[places] / median
    farthest = 0.0 if zero.any() else float(ratio[ratio.log().abs().argmax()])
    return Rows(len(places), int(places[0]), farthest)
