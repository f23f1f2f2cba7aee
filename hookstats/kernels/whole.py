"""cut_short(): whether a library's file ends too early: to load it would end the process."""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("=32xQQ6xHHHH2x")  # the tables' places, sizes and numbers of entries
_SEGMENT = struct.Struct("=8xQ16xQ16x")  # where it begins in the file, and its bytes there


def cut_short(library: Path) -> str | None:
    """How far the file of a library goes, if it ends before its last segment or table does.

    Files that are no 64-bit ELF of this machine are left to the loader, which says what they are.
    """
    with library.open("rb") as file:
        header = file.read(_HEADER.size)
        if header[:5] != b"\x7fELF\2" or len(header) < _HEADER.size:
            return None
        segments, sections, entry, entries, row, rows = _HEADER.unpack(header)
        file.seek(segments)
        table = file.read(entry * entries)
    size = library.stat().st_size
    whole = max(segments + entry * entries, sections + row * rows)
    if entry == _SEGMENT.size and len(table) == entry * entries:
        whole = max(whole, *(start + length for start, length in _SEGMENT.iter_unpack(table)))
    return f"{size} of {whole} bytes" if size < whole else None
