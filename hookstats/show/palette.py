"""The colours of values: even to the eye, safe for colour-blind eyes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEQUENTIAL = (
    "#440154", "#482878", "#3e4a89", "#31688e", "#26828e",
    "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
)  # fmt: skip
"""Matplotlib's viridis, by van der Walt and Smith (2015), at equal distances."""

DIVERGING = (
    "#0a2a6b", "#14508c", "#3f80ae", "#86b2cd", "#c9d9e2",
    "#e6ddd3", "#dcb694", "#cb8a5b", "#a9572b", "#75220a",
)  # fmt: skip
"""Blue to brown in the manner of Crameri's vik (2018), the middle light."""

NONE, NONFINITE = "#9a9a9a", "#e0103f"
"""Zero where a colour cannot say it, and what is not finite."""


def rgb(colours: tuple[str, ...]) -> NDArray[np.uint8]:
    """uint8 [n, 3] of "#rrggbb"."""
    return np.array([list(bytes.fromhex(colour[1:])) for colour in colours], np.uint8)


def shades(stops: tuple[str, ...], count: int) -> NDArray[np.uint8]:
    """uint8 [count, 3]: colours at equal distances, interpolated between the stops."""
    at = np.linspace(0, len(stops) - 1, count)
    channels = [np.interp(at, np.arange(len(stops)), channel) for channel in rgb(stops).T]
    colours: NDArray[np.uint8] = np.stack(channels, 1).round().astype(np.uint8)
    return colours
