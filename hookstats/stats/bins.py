"""LinearBins and LogBins: the bins a histogram counts in.

A histogram has `slots` = bins + 2 counts: slot 0 is the underflow, slots 1..bins are the bins in
ascending order of value, slot bins + 1 is the overflow. NaN and infinities have no slot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.arguments import check_integer
from hookstats.stats.lazy_torch import is_imported, torch
from hookstats.stats.sample import Sample, check_sample

EXPECTED_BINS = "LinearBins(64, lo=-4.0, hi=4.0), LogBins() or None"
"""What an error says of an argument that is to be bins."""

_MIN_EXPONENT = -127  # the exponent field 0 of a float32: zero and the subnormals
_MAX_EXPONENT = 127


class Bins(ABC):
    """What LinearBins and LogBins have in common."""

    type: ClassVar[str]
    """The name of the class in `to_dict`."""

    bins: int
    """Number of bins, without underflow and overflow."""

    sample: Sample
    """Of how many blocks of 64 elements one is counted; 1 if all are, or "auto"."""

    @property
    def slots(self) -> int:
        """Number of counts of one histogram: underflow, the bins, overflow."""
        return self.bins + 2

    @abstractmethod
    def edges(self) -> torch.Tensor:
        """Ascending edges [bins + 1] on the CPU: bin i lies between edges i and i + 1."""

    @abstractmethod
    def bounds(self) -> NDArray[np.float64]:
        """The edges as an array, float64 [bins + 1]."""

    @abstractmethod
    def descriptor(self, device: torch.device | str) -> torch.Tensor:
        """The bins as `hookstats::update_` takes them on `device`; made once per device."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A JSON-able description; `bins_from_dict` gives back an equal object."""


@dataclass(frozen=True)
class LinearBins(Bins):
    """`bins` bins of equal width from `lo` to `hi`.

    The edges are `torch.linspace(lo, hi, bins + 1, dtype=torch.float32)`, and the counts are those
    of `torch.searchsorted` on the edges: each bin includes its left edge, the last bin both edges.
    Values below `lo` are the underflow, values above `hi` the overflow.

    With ``sample=k``, of every k consecutive blocks of 64 elements one is counted, which follows
    from its place in memory and the step; ``sample="auto"`` chooses k by the size of each tensor.
    Bins that differ in `sample` alone are equal: what was counted in them merges.

    Raises:
        ValueError: bins outside 1..2**24; lo or hi not a finite float32; lo >= hi; so many bins
            that neighbouring edges are the same float32.
    """

    bins: int
    lo: float
    hi: float
    sample: Sample = field(default=1, compare=False)
    type: ClassVar[str] = "linear"
    _edges: dict[torch.device, torch.Tensor] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        _set_integer(self, "bins", 1, 2**24)
        object.__setattr__(self, "sample", check_sample(self.sample))
        for name in ("lo", "hi"):
            object.__setattr__(self, name, _float32(name, getattr(self, name)))
        if self.lo >= self.hi:
            raise ValueError(f"lo = {self.lo} and hi = {self.hi}: expected lo < hi")
        # Made here, not on first use: there a tracer might be on.
        with torch.inference_mode(False):
            edges = torch.linspace(
                self.lo, self.hi, self.bins + 1, dtype=torch.float32, device="cpu"
            )
        if not bool((edges.diff() > 0).all()):  # also false where hi - lo overflows to NaN edges
            raise ValueError(
                f"bins = {self.bins} from lo = {self.lo} to hi = {self.hi}: "
                "expected finite, distinct float32 edges"
            )
        self._edges[edges.device] = edges

    def edges(self) -> torch.Tensor:
        """Ascending float32 edges [bins + 1] on the CPU."""
        return self.descriptor("cpu").clone()

    def bounds(self) -> NDArray[np.float64]:
        return self.descriptor("cpu").numpy().astype(np.float64)

    def descriptor(self, device: torch.device | str) -> torch.Tensor:
        """The float32 edges [bins + 1] on `device`; shared, never write to them."""
        device = torch.device(device)
        if device not in self._edges:
            self._edges[device] = self._edges[torch.device("cpu")].to(device)
        return self._edges[device]

    def to_dict(self) -> dict[str, Any]:
        edges = {"bins": self.bins, "lo": self.lo, "hi": self.hi}
        return {"type": self.type, **edges, **_sampled(self.sample)}


@dataclass(frozen=True)
class LogBins(Bins):
    """Bins by a float32's own sign, exponent and first `subdivision_bits` mantissa bits.

    Every octave ``2**e <= |x| < 2**(e + 1)``, e in min_exponent..max_exponent, has
    ``2**subdivision_bits`` bins of equal width per sign. Zeros of either sign have the middle bin
    to themselves. The defaults have a bin for every finite float32, so no range has to be chosen.
    Exponent -127 stands for the subnormals. A greater `min_exponent` adds one bin per sign for
    ``0 < |x| < 2**min_exponent``. Values of ``2**(max_exponent + 1)`` and beyond are the overflow,
    or the underflow if they are negative. float64 and integers are first rounded toward zero to
    float32, but finite values beyond float32's range are overflow or underflow, and a nonzero never
    becomes zero. A negative bin includes its right edge, a positive bin its left edge. `sample` is
    that of `LinearBins`.

    Raises:
        ValueError: subdivision_bits outside 0..7; an exponent outside -127..127;
            min_exponent > max_exponent; another `sample`.
    """

    subdivision_bits: int = 3
    min_exponent: int = _MIN_EXPONENT
    max_exponent: int = _MAX_EXPONENT
    sample: Sample = field(default=1, compare=False)
    type: ClassVar[str] = "log"

    def __post_init__(self) -> None:
        _set_integer(self, "subdivision_bits", 0, 7)
        object.__setattr__(self, "sample", check_sample(self.sample))
        _set_integer(self, "min_exponent", _MIN_EXPONENT, _MAX_EXPONENT)
        _set_integer(self, "max_exponent", _MIN_EXPONENT, _MAX_EXPONENT)
        if self.min_exponent > self.max_exponent:
            raise ValueError(
                f"min_exponent = {self.min_exponent} and max_exponent = {self.max_exponent}: "
                "expected min_exponent <= max_exponent"
            )
        if is_imported():
            self.descriptor("cpu")  # not on first use: there a tracer might be on

    @property
    def bins(self) -> int:  # type: ignore[override]  # read-only, as the dataclass is
        """Number of bins, without underflow and overflow."""
        octaves = self.max_exponent - self.min_exponent + 1
        small = self.min_exponent > _MIN_EXPONENT
        return 2 * ((octaves << self.subdivision_bits) + small) + 1

    def edges(self) -> torch.Tensor:
        """Ascending float64 edges [bins + 1] on the CPU; the zero bin's two edges are both 0."""
        return torch.from_numpy(self.bounds())

    def bounds(self) -> NDArray[np.float64]:
        base = (self.min_exponent - _MIN_EXPONENT) << self.subdivision_bits
        top = (self.max_exponent - _MIN_EXPONENT + 1) << self.subdivision_bits
        exponent, fraction = np.divmod(np.arange(base, top + 1), 1 << self.subdivision_bits)
        # A subnormal has no implicit one, and the least normal number's exponent.
        significand = fraction + np.where(exponent > 0, 1 << self.subdivision_bits, 0)
        scale = np.maximum(exponent, 1) + _MIN_EXPONENT - self.subdivision_bits
        positive = np.ldexp(significand.astype(np.float64), scale)
        if base > 0:
            positive = np.concatenate(([0.0], positive))
        return np.concatenate((0.0 - positive[::-1], positive))

    def descriptor(self, device: torch.device | str) -> torch.Tensor:
        """int32 [3], on the CPU for every device; shared, never write to it."""
        return self._descriptor

    @cached_property
    def _descriptor(self) -> torch.Tensor:
        fields = self.subdivision_bits, self.min_exponent, self.max_exponent
        with torch.inference_mode(False):
            return torch.from_numpy(np.array(fields, np.int32))

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "subdivision_bits": self.subdivision_bits,
            "min_exponent": self.min_exponent,
            "max_exponent": self.max_exponent,
            **_sampled(self.sample),
        }


def bins_from_dict(data: Mapping[str, Any]) -> LinearBins | LogBins:
    """The bins that `to_dict` described.

    Raises:
        ValueError: an unknown type, missing or unknown entries, or bad values.
    """
    classes: dict[str, type[LinearBins | LogBins]] = {c.type: c for c in (LinearBins, LogBins)}
    values = dict(data)
    try:
        return classes[values.pop("type")](**values)
    except (KeyError, TypeError):
        raise ValueError(
            f"bins = {dict(data)}: expected a dict from LinearBins.to_dict or LogBins.to_dict"
        ) from None


def sample_of(bins: Bins | None) -> Sample:
    """The `sample` of bins; 1 without any."""
    return 1 if bins is None else bins.sample


def is_sampled(bins: Bins | None) -> bool:
    """Whether histograms on `bins` may count less than all values; False without bins."""
    return sample_of(bins) != 1


def _sampled(sample: Sample) -> dict[str, Any]:
    """The entry of `to_dict`; whole histograms have the description that they always had."""
    return {} if sample == 1 else {"sample": sample}


def _set_integer(bins: Bins, name: str, least: int, most: int) -> None:
    object.__setattr__(bins, name, check_integer(name, getattr(bins, name), least, most))


def _float32(name: str, value: Any) -> float:
    """`value` as a float, if its float32 is finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ValueError(f"{name} = {value!r}: expected a finite float32")
    return number
