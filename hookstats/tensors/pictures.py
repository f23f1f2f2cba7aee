"""Feature maps as pictures: a grid of all channels, for PIL, TensorBoard or any viewer."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.stats.arguments import check_integer, check_optional_integer

if TYPE_CHECKING:
    from PIL.Image import Image

Picture = NDArray[np.uint8]
"""uint8 [height, width, 3]: red, green, blue."""

NAN = (216, 27, 96)
POSINF = (255, 193, 7)
NEGINF = (30, 136, 229)
"""The colours of values that are not finite: NaN is magenta, +inf amber, -inf blue. They do not
occur in grey maps, and readers with any colour vision can tell them apart."""


def grid(
    x: Tensor,
    sample: int = 0,
    *,
    nrow: int | None = None,
    padding: int = 2,
    scale_each: bool = True,
    pad_value: float = 0.0,
    zoom: int = 1,
) -> Picture:
    """All channels of a feature map, side by side: a grey picture per channel, from its least value
    (black) to its greatest (white).

    The numbers are those of ``torchvision.utils.make_grid(x[sample].unsqueeze(1), nrow,
    normalize=True, scale_each=scale_each)``, rounded to 8 bits as its ``save_image`` does, with two
    exceptions. Values that are not finite have their own colours (`NAN`, `POSINF`, `NEGINF`) and do
    not count for the scale. Maps that span less than 1e-5, as those of gradients, are shown in full
    contrast. A constant map is black.

    Args:
        x: [samples, channels, height, width], [channels, height, width] or [height, width], of any
            real dtype, on any device.
        sample: which of the samples, if `x` has samples.
        nrow: the number of maps per row; by default the square root of the number of maps, rounded
            down.
        padding: the pixels around each map; a single map has no padding.
        scale_each: whether each map has its own scale; otherwise all maps share one.
        pad_value: the shade of the padding, from 0.0 (black) to 1.0 (white).
        zoom: the width and height of a value, in pixels.

    Returns:
        uint8 [height, width, 3].

    Raises:
        ValueError: a bad argument, or a tensor that is no feature map.
    """
    padding = check_integer("padding", padding, 0)
    zoom = check_integer("zoom", zoom, 1)
    nrow = check_optional_integer("nrow", nrow, 1)
    if not (isinstance(pad_value, numbers.Real) and 0.0 <= pad_value <= 1.0):
        raise ValueError(f"pad_value = {pad_value!r}: expected a number from 0.0 to 1.0")
    maps = _maps(x, sample)
    tiles: Picture = _colours(maps, scale_each).repeat(zoom, 1).repeat(zoom, 2)
    return _laid_out(tiles, nrow or math.isqrt(len(tiles)), padding, round(255 * pad_value))


def to_image(picture: Picture) -> Image:
    """A picture as a PIL image, which notebooks show and ``.save("maps.png")`` writes.

    Raises:
        ValueError: `picture` is not a picture as `grid` returns it.
        ImportError: pillow is not installed.
    """
    is_array = isinstance(picture, np.ndarray)
    if not is_array or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
        form = f"{picture.dtype} {list(picture.shape)}" if is_array else type(picture).__name__
        raise ValueError(
            f"picture: {form}, expected an array, uint8 [height, width, 3], as grid() makes it"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"to_image needs pillow ({error}): pip install pillow") from error
    return Image.fromarray(picture)


def add_image(writer: Any, tag: str, picture: Picture, step: int | None = None) -> None:
    """Write a picture to TensorBoard.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``.
        tag, step: the picture's name, and the step to which it belongs.
    Raises:
        ImportError: pillow is not installed, which the writer needs.
    """
    try:
        writer.add_image(tag, picture, step, dataformats="HWC")
    except ImportError as error:
        raise ImportError(f"add_image needs pillow ({error}): pip install pillow") from error


def _maps(x: Tensor, sample: int) -> NDArray[np.float64]:
    """float64 [maps, height, width]"""
    if not isinstance(x, Tensor):
        raise ValueError(f"x: {type(x).__name__}, expected a torch.Tensor")
    sample = check_integer("sample", sample, None)
    if x.dim() not in (2, 3, 4) or x.is_complex() or not x.numel():
        raise ValueError(
            f"x: {x.dtype} of shape {tuple(x.shape)}, expected real numbers of shape (samples, "
            "channels, height, width), (channels, height, width) or (height, width)"
        )
    if x.dim() == 4:
        if not -len(x) <= sample < len(x):
            raise ValueError(f"sample = {sample}: expected one of the {len(x)} samples")
        x = x[sample]
    maps: NDArray[np.float64] = x.detach().to("cpu", torch.float64).numpy()
    return maps if maps.ndim == 3 else maps[None]


def _colours(maps: NDArray[np.float64], scale_each: bool) -> Picture:
    """uint8 [maps, height, width, 3]"""
    finite = np.isfinite(maps)
    values = np.where(finite, maps, 0.0) / 2  # halves, so that no span overflows
    axes = (1, 2) if scale_each else (0, 1, 2)
    low = np.min(values, axes, keepdims=True, where=finite, initial=np.inf)
    high = np.max(values, axes, keepdims=True, where=finite, initial=-np.inf)
    span = np.where(high > low, high - low, 1.0)
    shares = np.where(finite, values - low, 0.0) / span
    grey = np.clip(shares * 255 + 0.5, 0, 255).astype(np.uint8)
    tiles: Picture = np.repeat(grey[..., None], 3, axis=-1)
    tiles[np.isnan(maps)] = NAN
    tiles[np.isposinf(maps)] = POSINF
    tiles[np.isneginf(maps)] = NEGINF
    return tiles


def _laid_out(tiles: Picture, nrow: int, padding: int, pad: int) -> Picture:
    """[maps, height, width, 3] in rows of `nrow`, as [height, width, 3]"""
    if len(tiles) == 1:
        single: Picture = tiles[0]
        return single
    columns = min(nrow, len(tiles))
    rows = -(-len(tiles) // columns)
    height, width = tiles.shape[1] + padding, tiles.shape[2] + padding
    picture = np.full((rows * height + padding, columns * width + padding, 3), pad, np.uint8)
    for i, tile in enumerate(tiles):
        top, left = i // columns * height + padding, i % columns * width + padding
        picture[top : top + len(tile), left : left + tile.shape[1]] = tile
    return picture
