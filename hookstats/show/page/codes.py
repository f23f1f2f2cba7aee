"""How a page stores numbers: magnitudes, signed numbers and shares in 16 bits, counts exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Integers

LOG_STEP = 0.01
"""Two neighbouring codes of a magnitude differ by one percent."""
LOG_FIRST = -300.0
"""The natural logarithm of the least magnitude that has a code."""
SHARES = 4096
"""The codes of a share."""


def magnitudes(values: NDArray[Any]) -> Integers:
    """Numbers >= 0 as codes: 0 for NaN and infinities, 1 for zero, then by logarithm.

    The error is half a percent at most, for 5e-131 to 2e154; others become the nearest of these.
    """
    with np.errstate(all="ignore"):
        level = np.round((np.log(values) - LOG_FIRST) / LOG_STEP)
    codes = 2 + np.clip(np.nan_to_num(level), 0, 0xFFFD)
    codes = np.where(values == 0, 1, codes)
    return np.where(np.isfinite(values), codes, 0).astype(np.uint16)


def shares(values: NDArray[Any]) -> Integers:
    """Numbers in 0..1 as codes: 0 for NaN, the first and the last for exactly 0 and 1."""
    codes = np.clip(np.round(np.nan_to_num(values) * (SHARES - 2)) + 1, 2, SHARES - 2)
    codes = np.where(values == 0, 1, np.where(values == 1, SHARES - 1, codes))
    return np.where(np.isnan(values), 0, codes).astype(np.uint16)


def bfloat16(values: NDArray[Any]) -> Integers:
    """The bits of the nearest bfloat16s, uint16: two to three digits at any magnitude."""
    with np.errstate(over="ignore"):
        bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding must not carry a NaN to an infinity, nor a finite value to one.
    largest = np.where(bits >> 31, 0xFF7F, 0x7F7F)
    finite = np.isfinite(values)
    rounded = np.where(finite, np.where((rounded & 0x7FFF) < 0x7F80, rounded, largest), bits >> 16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def width_of(counts: Integers) -> int:
    """The bytes that the greatest of these integers needs, 1 to 6."""
    return max(1, -(-int(counts.max(initial=0)).bit_length() // 8))
