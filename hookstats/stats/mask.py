"""Masks: which rows of a tensor are kept, such as those of sequences without their padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""The dtypes of masks."""

_MASK_DIMS = 2


def unfit(mask: Tensor) -> str | None:
    """What a tensor has that no mask has, such as "dtype torch.float32"; None if it is a mask."""
    if mask.layout != torch.strided or mask.is_nested:
        return f"layout {mask.layout}"
    if mask.dtype not in MASK_DTYPES:
        return f"dtype {mask.dtype}"
    return None if 1 <= mask.dim() <= _MASK_DIMS else f"shape {tuple(mask.shape)}"


EXPECTED = "a tensor of bool or integers of at most 64 bits, [batch, time] or [rows], 0 for padding"
"""What masks are, for error messages."""


def covered_dims(mask: Sequence[int], shape: Sequence[int], channel_dim: int | None) -> int:
    """How many leading dimensions of a tensor a mask covers; 0 if it does not fit.

    They are as many as the mask has, or one that has a row for each element of the mask, as in
    [batch * time, ...]. The channels must be along another dimension. The weights of attention,
    [batch, heads, time, time], are never masked. (csrc/core/kept_rows.h says the same.)

    Args:
        mask: the shape of the mask.
        shape: that of the tensor.
        channel_dim: the dimension of the tensor that has the channels; None: there is one.
    """
    dims = len(shape)
    along = -1 if channel_dim is None else channel_dim % dims if dims else 0
    time = mask[-1]
    if not dims or (len(mask) == 2 and dims == 4 and time > 1 and shape[2] == shape[3] == time):
        return 0
    if tuple(shape[: len(mask)]) == tuple(mask) and not 0 <= along < len(mask):
        return len(mask)
    rows = mask[0] if len(mask) == 1 else mask[0] * mask[1]
    return int(shape[0] == rows and along != 0)


def check_fits(mask: Tensor, x: Tensor, channel_dim: int | None) -> int:
    """How many leading dimensions of `x` the mask covers.

    Raises:
        ValueError: `mask` is no mask, or none that fits `x`.
    """
    if found := unfit(mask):
        raise ValueError(f"mask has {found}: expected {EXPECTED}")
    dims = covered_dims(mask.shape, x.shape, channel_dim)
    if not dims:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}: expected the first dimensions of x, which has "
            f"shape {tuple(x.shape)}, or as many elements as the first one has, and channel_dim = "
            f"{channel_dim} to be another one; the weights of attention take no mask"
        )
    return dims


def kept(x: Tensor, mask: Tensor, dims: int) -> Tensor:
    """The rows of `x` that a mask keeps, as a copy [rows, ...]; dims: how many dimensions the mask
    covers."""
    rows = mask.to(x.device) != 0
    return x[rows if dims == rows.dim() else rows.reshape(-1)]
