"""Number formats: the share of a tensor that a format would lose, and the scale that loses least.

A value is over if it rounds to no finite number of the format (a cast makes the value infinite or
NaN, or clips it to the greatest number), and under if it is not zero but rounds to zero; rounding
is to nearest. So the thresholds are half a step beyond the greatest number, and half the least
number. Values exactly at a threshold go by their bin: they count as over, and not as under (torch
rounds ties to the even number: 464 becomes 448 in e4m3, and half the least number becomes 0).

From LogBins, shares are exact at every power-of-two scale for which the threshold is an edge of a
bin:

- under: for every format, however many subdivision bits; but not where the threshold over the scale
  is a subnormal float32, as that of bf16 is at scale 1;
- over: fp8_e5m2 from 3 subdivision bits on, fp8_e4m3 from 4 on. fp16 and bf16 never: their
  greatest number is within one bin of a power of two.

Elsewhere `under_bounds` and `over_bounds` return the two numbers between which the share lies, and
`under` and `over` interpolate within the bin in question. The share of values over is exactly 0 if
amax * scale is below the threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hookstats.insight.histograms import below
from hookstats.stats.bins import LogBins
from hookstats.stats.histogram import Histogram
from hookstats.stats.lazy_torch import torch


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: its greatest, least normal and least subnormal numbers."""

    name: str
    max: float
    min_normal: float
    min_subnormal: float

    @property
    def over(self) -> float:
        """From this magnitude on, values round to no finite number of the format."""
        precision = self.min_subnormal / self.min_normal  # of a number in 1..2
        return self.max + math.ldexp(precision, math.frexp(self.max)[1] - 2)

    @property
    def under(self) -> float:
        """Below this magnitude values round to zero."""
        return self.min_subnormal / 2


FORMATS = {
    form.name: form
    for form in (
        Format("fp8_e4m3", 448.0, 2.0**-6, 2.0**-9),
        Format("fp8_e5m2", 57344.0, 2.0**-14, 2.0**-16),
        Format("fp16", 65504.0, 2.0**-14, 2.0**-24),
        Format("bf16", 2.0**128 - 2.0**120, 2.0**-126, 2.0**-133),
    )
}
"""torch.float8_e4m3fn, float8_e5m2 (OCP 8-bit floating point), float16 and bfloat16, by name."""

_SCALES = range(-126, 128)
"""The exponents of the power-of-two scales that are normal float32 numbers."""


def under(hist: Histogram, form: Format | str, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
    """The share of the finite values that are not zero, but times `scale` would be zero in `form`.

    Args:
        hist: C histograms in LogBins.
        form: a Format, or its name in FORMATS.
        scale: what values are multiplied by before they are cast: a number, or float64 [C].
    Returns:
        float64 [C], in 0..1; NaN where there is no finite value.
    Raises:
        ValueError: other bins, an unknown format, or a scale that is not finite and above 0.
    """
    return _under(hist, _form(form), _scales(scale))[1].squeeze(1)


def over(hist: Histogram, form: Format | str, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
    """The share of the finite values that, times `scale`, would be too large for `form`.

    Arguments, result and errors are those of `under`.
    """
    return _over(hist, _form(form), _scales(scale))[1].squeeze(1)


def under_bounds(
    hist: Histogram, form: Format | str, scale: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bounds of the true share that `under` estimates, float64 [C] each."""
    low, _, high = _under(hist, _form(form), _scales(scale))
    return low.squeeze(1), high.squeeze(1)


def over_bounds(
    hist: Histogram, form: Format | str, scale: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The bounds of the true share that `over` estimates, float64 [C] each."""
    low, _, high = _over(hist, _form(form), _scales(scale))
    return low.squeeze(1), high.squeeze(1)


def best_scale(hist: Histogram, form: Format | str) -> torch.Tensor:
    """The power of two in 2**-126..2**127 that loses the least, under and over together.

    Of several such scales this is the greatest, which leaves the fewest values subnormal. A few
    outliers are given up if that saves more values at the other end: for the greatest scale at
    which nothing is over, divide `Format.max` by amax.

    Returns:
        float64 [C]; 1 for channels whose values are all zero.
    Raises:
        ValueError: other bins, or an unknown format.
    """
    form = _form(form)
    scales = torch.tensor([2.0**e for e in _SCALES], dtype=torch.float64, device="cpu")
    lost = _under(hist, form, scales)[1] + _over(hist, form, scales)[1]
    best = scales.expand_as(lost).where(lost == lost.amin(1, keepdim=True), -torch.inf).amax(1)
    amax = torch.maximum(-hist.min, hist.max)
    return torch.where(amax > 0, best, 1.0)


_Shares = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]
"""Shares [C, K]: the lower bound, the estimate, the upper bound."""


def _under(hist: Histogram, form: Format, scale: torch.Tensor) -> _Shares:
    inner = _within(hist, form.under / scale)
    zeros = hist.slot_counts[:, hist.bins.slots // 2, None]  # the middle one
    total = hist.slot_counts.sum(1, keepdim=True)
    low, estimate, high = ((part - zeros) / total for part in inner)
    return low, estimate, high


def _over(hist: Histogram, form: Format, scale: torch.Tensor) -> _Shares:
    inner = _within(hist, form.over / scale)
    total = hist.slot_counts.sum(1, keepdim=True)
    high, estimate, low = ((total - part) / total for part in inner)
    return low, estimate, high


def _within(hist: Histogram, magnitude: torch.Tensor) -> _Shares:
    """The number of values between -magnitude and magnitude."""
    if not isinstance(hist.bins, LogBins):
        raise ValueError(f"hist has bins {hist.bins}: expected LogBins")
    low, estimate, high = below(hist, torch.cat((-magnitude, magnitude), dim=-1))
    (low_of_lower, low), (lower, estimate), (high_of_lower, high) = (
        part.tensor_split(2, dim=1) for part in (low, estimate, high)
    )
    return low - high_of_lower, estimate - lower, high - low_of_lower


def _form(form: Format | str) -> Format:
    if isinstance(form, Format):
        return form
    if form not in FORMATS:
        raise ValueError(f"form = {form!r}: expected a Format or one of {', '.join(FORMATS)}")
    return FORMATS[form]


def _scales(scale: float | torch.Tensor) -> torch.Tensor:
    """[1], or [C, 1]."""
    scales = torch.as_tensor(scale, dtype=torch.float64, device="cpu").reshape(-1, 1)
    if not bool(((scales > 0) & (scales < torch.inf)).all()):
        raise ValueError(f"scale = {scale}: expected finite numbers above 0")
    return scales if len(scales) != 1 else scales[0]
