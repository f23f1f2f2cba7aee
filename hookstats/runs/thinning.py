"""Thinning: which old parts go first to keep to `max_bytes`, so that all ranks keep the same steps.

Steps come in blocks of one length, which the ranks agree on by a file of the run. A part never has
steps of two blocks, and old blocks are deleted whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hookstats.runs.files import naming, read_json, to_json, write_file
from hookstats.runs.format import THINNING_JSON, PartName
from hookstats.stats.arguments import check_integer

_BLOCKS = 128
"""About so many blocks, or up to twice as many, hold `max_bytes`."""


class Written(NamedTuple):
    """A part that is complete."""

    name: PartName
    steps: int
    """How many steps it has."""
    size: int
    """The size in bytes."""
    last: int
    """Its last step."""


def block_of(run: Path, rank: int, step_bytes: float, every: int, max_bytes: int) -> int:
    """The steps of a block: what the first rank that asked said, a power of two times `every`.

    The file stays: a run that is continued keeps its blocks.

    Args:
        step_bytes: what a recorded step takes, about.
        every: how many steps lie between two that are recorded.
        max_bytes: how many bytes the parts of this rank may have.
    Raises:
        ValueError: the file is damaged; the message names it.
    """
    path = run / THINNING_JSON
    steps = max(1.0, max_bytes / _BLOCKS / max(step_bytes, 1.0))
    wanted = every << int(math.log2(steps))
    with suppress(OSError):  # another rank was first, or the disk takes nothing
        write_file(path, to_json("thinning", {"block": wanted}), rank, new=True)
    if not path.exists():
        return wanted
    with naming(path):
        block: int = check_integer("block", read_json(path).get("block"), 1)
        return block


def around(
    parts: Mapping[int, Written], ranges: Sequence[tuple[int, int]], max_bytes: int
) -> set[int]:
    """The numbers of the parts with steps of these ranges, first to last: of the latest ranges, as
    many as `max_bytes` holds."""
    found: set[int] = set()
    size = 0
    for first, last in reversed(ranges):
        for number in sorted(parts):
            part = parts[number]
            if number in found or part.last < first or part.name.step > last:
                continue
            if size + part.size > max_bytes:
                return found
            found.add(number)
            size += part.size
    return found


def first_to_go(
    parts: Mapping[int, Written], block: int | None, max_bytes: int, late: Set[int] = frozenset()
) -> Iterator[list[int]]:
    """The numbers of the parts in the order of their deletion, those of a block together.

    Newer parts, those of a quarter of `max_bytes`, come last, and the newest part never. Of the
    others those come first whose block's number the fewest powers of two divide: what stays is
    spread evenly, and what two ranks delete is the same but for the last few.

    block: the steps of a block; None: each part is a block.
    late: the numbers of parts that go after all others but the newer ones.
    """
    numbers = sorted(parts)
    blocks: dict[int, list[int]] = {}
    for number in numbers:
        key = number if block is None else parts[number].name.step // block
        blocks.setdefault(key, []).append(number)
    order = sorted(blocks, key=lambda key: blocks[key][-1])
    newest = blocks[order[-1]]
    sizes = {key: sum(parts[number].size for number in blocks[key]) for key in blocks}
    recent = sizes[order.pop()]  # the newest block stays as long as others can go
    kept = []
    while order and recent + sizes[order[-1]] <= max_bytes // 4:
        recent += sizes[order[-1]]
        kept.append(order.pop())
    order.sort(key=lambda key: (key & -key or math.inf, key))
    early = ([number for number in blocks[key] if number not in late] for key in order)
    yield from filter(None, early)
    yield from ([number] for key in order for number in blocks[key] if number in late)
    yield from (blocks[key] for key in reversed(kept))
    yield from ([number] for number in newest[:-1])
