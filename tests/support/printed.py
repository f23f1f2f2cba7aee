"""What a program printed, compared with what a page says: other processors add in another order."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


_NUMBER_OR_ZERO = re.compile(rf"{_NUMBER.pattern}|(?<=  )0(?= )")
"""Where one processor's mean is 0, another's may be rounding."""


def shape(text: str) -> str:
    """The text without its decimals, and without the spaces that their widths bring about."""
    return "".join(_NUMBER_OR_ZERO.sub("#", text).split())
