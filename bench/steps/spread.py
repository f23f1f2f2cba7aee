"""spread(): what recording one step of many costs, over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def spread(seconds: Sequence[float], every: int) -> list[float]:
    """`seconds` of single steps, with what recording one of `every` adds spread over all.

    The i-th was recorded where i + 1 is a multiple of `every`, as the one before the first was.
    """
    extra = median(seconds[every - 1 :: every]) - median(
        s for i, s in enumerate(seconds) if (i + 1) % every
    )
    return [s + extra / every - (0 if (i + 1) % every else extra) for i, s in enumerate(seconds)]
