"""The pages of a column chunk: how much memory they take decoded, before anybody decodes them.

A few bytes of a Parquet file can stand for billions of equal values. How many these are, the header
of each page says, in Thrift's compact protocol; what the footer says of them is not what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LEAST_BYTES = 1 << 30
"""What may always be decoded at once: a record of 13 million channels."""
MOST_BYTES = 16 << 30
"""What is never decoded at once: lists of 2**31 numbers, which no record has."""
_RATIO = 64
"""What honest columns stay below where they are large: numbers take 2 to 20 times less stored."""
_BYTES = 8  # of the largest value; one in a list takes another one on the way
_TYPES = {5: "data", 7: "dictionary", 8: "data"}
"""The fields of a page header that say how many values there are, for the kinds of pages."""


def check_size(chunks: Iterable[tuple[int, bytes]]) -> int:
    """Raise a ValueError if column chunks, decoded together, take more memory than they may;
    returns how many bytes are stored.

    Also where a chunk has fewer values than rows, or a page header cannot be read (the latter may
    be an IndexError).

    chunks: the rows that each is said to have, and its bytes.
    """
    stored = decoded = 0
    for rows, chunk in chunks:
        stored += len(chunk)
        values = 0
        for here, size in _pages(chunk):
            values += here
            decoded += max(here * _BYTES, size)
        if values < rows:
            raise ValueError(f"a column has {values} values, its row group {rows} rows")
        most = min(max(LEAST_BYTES, _RATIO * stored), MOST_BYTES)
        if decoded > most:
            raise ValueError(f"its columns are {decoded} bytes or more, expected at most {most}")
    return stored


def _pages(chunk: bytes) -> Iterator[tuple[int, int]]:
    """The number of values of each page, and the number of its bytes, decompressed."""
    at = 0
    while at < len(chunk):
        header, at = _struct(chunk, at)
        size, stored = header.get(2), header.get(3)
        about = next((header[field] for field in _TYPES if field in header), None)
        values = about.get(1) if isinstance(about, dict) else None
        if not (isinstance(size, int) and isinstance(stored, int) and isinstance(values, int)):
            raise ValueError("a page has no header")
        if min(size, stored, values) < 0:
            raise ValueError(f"a page of {values} values has {stored} bytes, {size} decompressed")
        yield values, size
        at += stored


Value = int | dict[int, "Value"] | None
"""A number, a structure by the numbers of its fields, or what is of no interest here."""


def _struct(data: bytes, at: int) -> tuple[dict[int, Value], int]:
    """The fields of a structure that begins at `at`, and where it ends."""
    fields: dict[int, Value] = {}
    field = 0
    while True:
        byte = data[at]
        at += 1
        if byte == 0:
            return fields, at
        if byte >> 4:
            field += byte >> 4
        else:
            field, at = _integer(data, at)
        kind = byte & 15
        if 4 <= kind <= 6 and data[at] < 128:  # most numbers have one byte
            fields[field] = (data[at] >> 1) ^ -(data[at] & 1)
            at += 1
        elif kind > 2:  # what is true or false has no bytes
            fields[field], at = _value(data, at, kind)


def _value(data: bytes, at: int, kind: int) -> tuple[Value, int]:
    match kind:
        case 1 | 2 | 3:  # true, false (in a list), a byte
            return None, at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, at + 8
        case 8:
            length, at = _unsigned(data, at)
            return None, at + length
        case 9 | 10:
            length, kind = data[at] >> 4, data[at] & 15
            at += 1
            if length == 15:
                length, at = _unsigned(data, at)
            for _ in range(length):
                _, at = _value(data, at, kind)
            return None, at
        case 12:
            return _struct(data, at)
    raise ValueError(f"a page header has a value of type {kind}")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a page header has a number of more than ten bytes")
