"""What is measured: how much, layouts of tensors, what is in them, and what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from bench.cuda import tables
from bench.states import BINS, EVERYTHING, What


@dataclass(frozen=True)
class Layout:
    """A shape, contiguous, and which of its dimensions has the channels."""

    name: str
    shape: tuple[int, ...]
    channel_dim: int | None

    @property
    def channels(self) -> int:
        return 1 if self.channel_dim is None else self.shape[self.channel_dim]

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape in which every channel has a dimension of its own."""
        return (1, prod(self.shape)) if self.channel_dim is None else self.shape


WHATS = dict(zip(tables.WHATS, (What(), What(bins=BINS), EVERYTHING), strict=True))


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    device: torch.device
    elements: int = 1 << 28
    """Of one tensor: 1 GB in float32, beside which what a launch costs at least is nothing."""
    rounds: int = 15
    inputs: int | None = None
    """None for as many as keep each cold."""
    every_layout: bool = True
    """Or else the few that also other things are measured of."""
    gradients: int = 2000
    greatest_gradient: int = 64 << 20  # bytes
    small: bool = False
    """Whether what is trained is tiny."""
    steps: int = 5
    """Of a training that are timed at once."""


def layouts(elements: int) -> list[Layout]:
    """Those of the regimes, of about so many elements each, of 2**18 or more."""
    found = [Layout("whole tensor", (elements,), None)]
    # Powers of two; widths of models; what no vector divides: 3 channels, GPT-2's vocabulary.
    for channels in (64, 256, 768, 1024, 4096, 5120, 14336, 16384, 3, 50257):
        batch = 8
        length = max(1, elements // channels // batch)
        found.append(Layout(f"(N, L, {channels})", (batch, length, channels), 2))
    # Maps of 14 x 14 and 7 x 7 do not begin at multiples of 16 bytes.
    for channels, side in ((64, 16), (256, 16), (512, 16), (2048, 16), (256, 14), (512, 7)):
        images = max(1, elements // channels // side**2)
        name = f"(N, {channels}, {'H, W' if side == 16 else f'{side}, {side}'})"
        found.append(Layout(name, (images, channels, side, side), 1))
    rows = (Layout(f"rows of {n}", (elements // n, n), 0) for n in (1024, 4096))
    return [*found, *rows]


def values(content: str, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values [elements], the same in every run."""
    generator = torch.Generator(device).manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(elements, generator=generator, device=device)

    def chosen(share: float) -> Tensor:
        return torch.rand(elements, generator=generator, device=device) < share

    if content == "normal":
        x = normal()
    elif content == "constant":
        x = torch.full((elements,), 0.75, device=device)
    elif content == "99% zero":
        x = normal().masked_fill_(chosen(0.99), 0.0)
    elif content == "heavy-tailed":  # Student's t with one degree of freedom
        x = normal().div_(normal())
    elif content == "1% NaN":
        x = normal().masked_fill_(chosen(0.01), torch.nan)
    else:
        raise ValueError(f"content = {content!r}: expected one of {', '.join(tables.CONTENTS)}")
    return x.to(dtype)
