"""Quantities of a tensor for `observe`: losses of block-scaled formats, and of the spectrum.

They read the tensor once more, draw no random numbers and never wait for the device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from hookstats.insight.formats import FORMATS, Format
from hookstats.stats.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

ITERATIONS = 32
"""How often `stable_rank` multiplies by the matrix and its transpose."""

_FP4 = Format("fp4_e2m1", 6.0, 1.0, 0.5)
_E4M3 = FORMATS["fp8_e4m3"]


class BlockFormat(NamedTuple):
    """A format of blocks of elements, each with a scale."""

    elements: Format
    size: int
    """Elements in a block."""
    is_power_of_two: bool
    """Whether scales are powers of two (e8m0); else each is an e4m3 number times the tensor's."""


BLOCK_FORMATS = {
    "mxfp8_e4m3": BlockFormat(_E4M3, 32, is_power_of_two=True),
    "mxfp8_e5m2": BlockFormat(FORMATS["fp8_e5m2"], 32, is_power_of_two=True),
    "mxfp4": BlockFormat(_FP4, 32, is_power_of_two=True),
    "nvfp4": BlockFormat(_FP4, 16, is_power_of_two=False),
}
"""By name: the formats of the OCP Microscaling specification 1.0 (2023), and NVIDIA's nvfp4."""


def block_losses(values: Tensor, form: str) -> dict[str, Tensor]:
    """What a block-scaled format would lose of a tensor, whose blocks lie along its last dimension.

        hs.observe("fc.mx", lambda: hs.insight.block_losses(x, "mxfp4"), channel_dim=None)

    The scale of an MX block is the power of two of the specification: the greatest number of the
    block falls into the last octave of the format, where the format may end before it does. That of
    nvfp4 takes the greatest number of the block to 6, rounded to e4m3 relative to the tensor's own.
    Numbers that are not finite count as zeros.

    Args:
        values: floating-point numbers [..., N]; the last block of a row may be shorter.
        form: a name in `BLOCK_FORMATS`.
    Returns:
        float32 [..., blocks] by name, with rounding to nearest. "under" is the share of the
        block's elements that are not zero but become zero, "over" the share that are clipped to
        the greatest number, "log2_scale" the exponent of the scale that elements are divided by.
    Raises:
        ValueError: an unknown format, no element or dimension, or numbers that are not of
            floating point.
    """
    if form not in BLOCK_FORMATS:
        raise ValueError(f"form = {form!r}: expected one of {', '.join(BLOCK_FORMATS)}")
    if not values.is_floating_point() or not values.dim() or not values.numel():
        raise ValueError(f"values: expected floating-point numbers [..., N], got {_shown(values)}")
    elements, size, is_power_of_two = BLOCK_FORMATS[form]
    length = values.shape[-1]
    blocks = -(-length // size)
    magnitude = values.detach().float().abs().nan_to_num(0.0, 0.0)
    magnitude = torch.nn.functional.pad(magnitude, (0, blocks * size - length))
    magnitude = magnitude.view(*magnitude.shape[:-1], blocks, size)
    amax = magnitude.amax(-1)
    if is_power_of_two:
        _, exponent = torch.frexp(amax)
        scale_exponent = (exponent - math.frexp(elements.max)[1]).clamp(-127, 127)
        scale = torch.ldexp(torch.ones_like(amax), scale_exponent.where(amax > 0, -127))
        least: Tensor | float = 0.0
    else:
        whole = (amax.amax() / (_E4M3.max * elements.max)).clamp(min=torch.finfo().tiny)
        ratio = (amax / elements.max / whole).clamp(max=_E4M3.max)
        scale = ratio.to(torch.float8_e4m3fn).float() * whole
        least = _E4M3.min_subnormal * whole
    under = (scale * elements.under).unsqueeze(-1)
    over = (scale * elements.over).where(scale > 0, torch.inf).unsqueeze(-1)
    lost = (magnitude > 0) & ((magnitude <= under) | (under == 0))
    counts = torch.full((blocks,), size, device=amax.device)
    counts[-1:] -= blocks * size - length
    return {
        "under": lost.sum(-1) / counts,
        "over": (magnitude >= over).sum(-1) / counts,
        "log2_scale": scale.clamp(min=least).log2(),
    }


def stable_rank(matrix: Tensor) -> Tensor:
    """The squared Frobenius norm over the squared spectral norm: how many directions carry weight.

    The spectral norm is that of `ITERATIONS` power iterations, from a vector that is always the
    same. Where the greatest singular values are nearly equal, as in random matrices, the result is
    up to a tenth too large; where the second is at most nine tenths of the first, it is exact to
    1e-3.

    Args:
        matrix: floating-point numbers [..., M, N]; flatten the weight of a convolution before.
    Returns:
        float32 [...], in 1..min(M, N); 0 for a matrix of zeros, NaN where a number is not finite.
    Raises:
        ValueError: fewer than two dimensions, or numbers that are not of floating point.
    """
    matrix, squares = _scaled(matrix)
    vector = torch.arange(1, matrix.shape[-1] + 1, device=matrix.device).float().square().cos()
    vector = vector.expand(*matrix.shape[:-2], -1).unsqueeze(-1)
    for _ in range(ITERATIONS):
        vector = matrix.mT @ (matrix @ vector)
        vector = vector / torch.linalg.vector_norm(vector, dim=-2, keepdim=True)
    spectral = torch.linalg.vector_norm(matrix @ vector, dim=(-2, -1))
    return _unless_zero(squares, squares / spectral.square())


def singular_entropy(matrix: Tensor) -> Tensor:
    """The Rényi entropy of order two of the squared singular values, as shares of their sum.

    Its exponential is the number of directions if all carried as much: 1 for a matrix of rank one.
    It needs one product of the matrix with its transpose, and no decomposition.

    Args:
        matrix: floating-point numbers [..., M, N].
    Returns:
        float32 [...], in 0..log(min(M, N)), 0 for a matrix of zeros; NaN where a number is not
        finite.
    Raises:
        ValueError: fewer than two dimensions, or numbers that are not of floating point.
    """
    matrix, squares = _scaled(matrix)
    wide = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    gram = torch.linalg.vector_norm(wide @ wide.mT, dim=(-2, -1))
    return _unless_zero(squares, 2 * (squares.log() - gram.log()))


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix as float32 with a greatest magnitude of 1, and its squared Frobenius norm."""
    if not matrix.is_floating_point() or matrix.dim() < 2:
        raise ValueError(
            f"matrix: expected floating-point numbers [..., M, N], got {_shown(matrix)}"
        )
    wide = matrix.detach().float()
    greatest = wide.abs().amax((-2, -1), keepdim=True)
    scaled = wide / greatest.where(greatest != 0, 1.0)
    return scaled, torch.linalg.vector_norm(scaled, dim=(-2, -1)).square()


def _unless_zero(squares: Tensor, value: Tensor) -> Tensor:
    return value.where(squares != 0, 0.0)


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"
