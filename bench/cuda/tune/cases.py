"""Case: a tensor that policies are compared on."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

DTYPES = {"fp32": 4, "bf16": 2}
"""Bytes of an element."""
LAYOUTS: dict[str, tuple[int, int, int | None]] = {
    "whole tensor": (1, 1, None),
    "(N, L, 64)": (64, 1, 1),
    "(N, L, 256)": (256, 1, 1),
    "(N, L, 1024)": (1024, 1, 1),
    "(N, L, 4096)": (4096, 1, 1),
    "(N, L, 16384)": (16384, 1, 1),
    "(N, 256, 16, 16)": (256, 256, 1),
    "(N, 256, 14, 14)": (256, 196, 1),
    "(N, 512, 7, 7)": (512, 49, 1),
    "rows of 1024": (1, 1024, 0),
    "rows of 4096": (1, 4096, 0),
}
"""How many channels are side by side, how many elements each has there, and the dimension that has
the channels of the tensor, seen as rows, channels and elements."""
HISTOGRAMS = {"none": (0, 0), "tensor": (1, 0), "channels": (0, 1), "both": (1, 1)}
"""Whether there is one of the tensor, and one of each channel."""
MEGABYTES = (4, 32, 256)


class Case(NamedTuple):
    """One tensor, contiguous, and what is counted."""

    dtype: str
    layout: str
    histograms: str
    megabytes: float

    @property
    def name(self) -> str:
        return f"{self.layout} {self.dtype}, {self.histograms}, {self.megabytes:g} MB"

    @property
    def agent(self) -> str:
        """Which kernels read it; maps are read as columns are, with as many registers."""
        channels, _, dim = LAYOUTS[self.layout]
        return "columns" if dim == 1 and channels > 1 else "runs"

    @property
    def channel_dim(self) -> int:
        """Of `sizes`; -1 for the whole tensor."""
        dim = LAYOUTS[self.layout][2]
        return -1 if dim is None else dim

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, channels side by side, and elements of each."""
        channels, elements, _ = LAYOUTS[self.layout]
        rows = int(self.megabytes * 2**20) // DTYPES[self.dtype] // (channels * elements)
        return max(1, rows), channels, elements

    @property
    def words(self) -> str:
        """As the tuner's programs are asked about it."""
        tensor, channels = HISTOGRAMS[self.histograms]
        sizes = ",".join(map(str, self.sizes))
        return (
            f"dtype={self.dtype} sizes={sizes} channel_dim={self.channel_dim} "
            f"tensor={tensor} channels={channels}"
        )


def cases() -> list[Case]:
    """All of them, so that the first few are of every kind."""
    every = [Case(*each) for each in product(DTYPES, LAYOUTS, HISTOGRAMS, MEGABYTES)]
    stride = 101  # which has no factor in common with their number
    return [every[i * stride % len(every)] for i in range(len(every))]
