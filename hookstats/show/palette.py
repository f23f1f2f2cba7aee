"""The colours of values: perceptually uniform, and safe for colour-blind eyes."""

from __future__ import annotations

SEQUENTIAL = (
    "#440154", "#482878", "#3e4a89", "#31688e", "#26828e",
    "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
)  # fmt: skip
"""Matplotlib's viridis, by van der Walt and Smith (2015), sampled at equal distances."""

DIVERGING = (
    "#0a2a6b", "#14508c", "#3f80ae", "#86b2cd", "#c9d9e2",
    "#e6ddd3", "#dcb694", "#cb8a5b", "#a9572b", "#75220a",
)  # fmt: skip
"""Blue to brown with a light middle, after Crameri's vik (2018)."""

DIVERGING_DARK = (
    "#a5d8ff", "#6fb4e4", "#4489bd", "#2d5f86", "#243b4f",
    "#3d3229", "#6b4a2f", "#a06a3c", "#d3924f", "#ffc98a",
)  # fmt: skip
"""The same with a dark middle, for dark pages."""

NONE, NONFINITE = "#9a9a9a", "#e0103f"
"""A zero that a log scale cannot show, and a tensor with a NaN or an infinity."""
