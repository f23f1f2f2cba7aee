"""Payload: the content of a report, as JSON and small arrays in one string."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.printable import printable

UInt8 = NDArray[np.uint8]
UInt16 = NDArray[np.uint16]


class Payload:
    """A description and named byte arrays, which `decode.js` unpacks."""

    def __init__(self) -> None:
        self._description: dict[str, Any] = {}
        self._arrays: dict[str, bytes] = {}

    def describe(self, **description: Any) -> None:
        """Add JSON-able entries to the description; texts in them are made `printable`."""
        self._description.update(_printable(description))

    def add(self, name: str, array: UInt8 | UInt16) -> None:
        """Add an array; of 16-bit numbers, all high bytes come first: they compress better."""
        if array.dtype == np.uint16:
            array = np.stack((array >> 8, array & 255))
        self._arrays[name] = np.ascontiguousarray(array, np.uint8).tobytes()

    def pack(self) -> str:
        """All of it, compressed by zlib, in base64.

        Compressed are the length of the JSON (uint32, little-endian), the JSON, and the arrays. The
        JSON is the description with "lengths": [[name, bytes], ...] of the arrays.
        """
        lengths = [[name, len(data)] for name, data in self._arrays.items()]
        text = json.dumps(
            {**self._description, "lengths": lengths},
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
        ).encode()
        whole = b"".join((len(text).to_bytes(4, "little"), text, *self._arrays.values()))
        return base64.b64encode(zlib.compress(whole, 9)).decode("ascii")


def _printable(value: Any) -> Any:
    """A JSON-able value with all its texts printable, keys included."""
    match value:
        case str():
            return printable(value, lines=True)
        case dict():
            return {_printable(key): _printable(each) for key, each in value.items()}
        case list() | tuple():
            return [_printable(each) for each in value]
    return value


def bfloat16(values: NDArray[Any]) -> UInt16:
    """The bits of the nearest bfloat16s, uint16: two to three digits at any magnitude."""
    with np.errstate(over="ignore"):
        bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding must not carry a NaN to an infinity, nor a finite value to one.
    largest = np.where(bits >> 31, 0xFF7F, 0x7F7F)
    finite = np.isfinite(values)
    rounded = np.where(finite, np.where((rounded & 0x7FFF) < 0x7F80, rounded, largest), bits >> 16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
