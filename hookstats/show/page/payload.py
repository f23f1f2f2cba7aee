"""Payload: the content of a page, as JSON and blocks of bytes in two strings."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Integers
from hookstats.stats.printable import printable

UInt8 = NDArray[np.uint8]

_LEVEL = 5  # of zlib: 6 takes 1.7 times as long for one percent


class Payload:
    """A description and named blocks of bytes, which `decode.js` unpacks."""

    def __init__(self) -> None:
        self._description: dict[str, Any] = {}
        self._small: dict[str, bytes] = {}
        self._blocks: dict[str, bytes] = {}

    def describe(self, **description: Any) -> None:
        """Add JSON-able entries to the description; texts in them are made `printable`."""
        self._description.update(_printable(description))

    def add(self, name: str, array: UInt8) -> None:
        """Add a small array of bytes, which is compressed together with others."""
        self._small[name] = np.ascontiguousarray(array, np.uint8).tobytes()

    def add_block(self, name: str, compressed: bytes) -> None:
        """Add what `compress` made of the `planes` of an array."""
        self._blocks[name] = compressed

    def pack(self, early: Collection[str] | None = None) -> tuple[str, str]:
        """What the first picture needs, and the rest, in base64.

        The first string has the length of the head (uint32, little-endian), the head, and the
        blocks named in `early`, or all of them; the second string has the other blocks. Head and
        blocks are compressed by zlib. The head is the length of the JSON (uint32), the JSON and
        the small arrays. The JSON is the description with "lengths", "blocks" and "later":
        [[name, bytes], ...] of the small arrays, and of the compressed blocks in each string.
        """
        lengths = [[name, len(data)] for name, data in self._small.items()]
        first: dict[str, bytes] = {}
        rest: dict[str, bytes] = {}
        for name, data in self._blocks.items():
            (first if early is None or name in early else rest)[name] = data
        blocks, later = (
            [[name, len(data)] for name, data in some.items()] for some in (first, rest)
        )
        text = json.dumps(
            {**self._description, "lengths": lengths, "blocks": blocks, "later": later},
            ensure_ascii=False,
            separators=(",", ":"),
            allow_nan=False,
        ).encode()
        head = compress(b"".join((_length(text), text, *self._small.values())))
        strings = (b"".join((_length(head), head, *first.values())), b"".join(rest.values()))
        return base64.b64encode(strings[0]).decode(), base64.b64encode(strings[1]).decode()


def _length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little")


def compress(data: bytes) -> bytes:
    """The data, compressed as blocks are."""
    return zlib.compress(data, _LEVEL)


def planes(codes: Integers, width: int) -> bytes:
    """Codes [S, T] >= 0 of `width` bytes as they compress best: differences from column to column,
    modulo 256**width, all lowest bytes first, then the next ones."""
    # Numbers this wide wrap around as planes do.
    wide = np.ascontiguousarray(codes, f"<u{1 << (width - 1).bit_length()}")
    steps: Any = np.diff(wide, axis=1, prepend=wide.dtype.type(0))
    each = steps.view(np.uint8).reshape(*wide.shape, wide.itemsize)
    return b"".join(each[..., k].tobytes() for k in range(width))


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
