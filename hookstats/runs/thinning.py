"""Thinning: which old parts go first to keep to `max_bytes`, so that all ranks keep the same steps.

Steps come in blocks of one length, which the ranks agree on by a file of the run. A part never has
steps of two blocks, and old blocks are deleted whole. Those with steps around incidents, of any
rank, go last; the ranks tell each other of them by the names of empty files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hookstats.runs.files import naming, read_json, to_json, write_file
from hookstats.runs.format import INCIDENTS, THINNING_JSON, PartName
from hookstats.stats.arguments import check_integer

_BLOCKS = 128
"""About so many blocks, or up to twice as many, hold `max_bytes`."""
_MOST_INCIDENTS = 256
_RANGE = re.compile(r"(\d{12,18})-(\d{12,18})")


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


class Around:
    """The steps around the incidents of all ranks, as ranges, first to last."""

    def __init__(self, run: Path) -> None:
        self._directory = run / INCIDENTS
        self._unsaid: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """Tell all ranks of a range."""
        self._unsaid = [*self._unsaid[1 - _MOST_INCIDENTS :], (max(0, first), last)]
        self._say()

    def _say(self) -> None:
        with suppress(OSError):  # a disk that takes nothing: the next time
            while self._unsaid:
                first, last = self._unsaid[0]
                self._directory.mkdir(exist_ok=True)
                (self._directory / f"{first:012d}-{last:012d}").touch()
                del self._unsaid[0]

    def ranges(self) -> list[tuple[int, int]]:
        """The latest ranges, ascending."""
        self._say()
        names: list[str] = []
        with suppress(OSError):
            names = [path.name for path in self._directory.iterdir()]
        said = [(int(m[1]), int(m[2])) for m in map(_RANGE.fullmatch, names) if m]
        return sorted({*said, *self._unsaid})[-_MOST_INCIDENTS:]


def remove_ranges(run: Path) -> None:
    """Delete what `Around` wrote, and nothing else."""
    with suppress(OSError):
        for path in (run / INCIDENTS).iterdir():
            if _RANGE.fullmatch(path.name):
                path.unlink(missing_ok=True)
        (run / INCIDENTS).rmdir()


def blocks_of(parts: Mapping[int, Written], block: int | None) -> dict[int, list[int]]:
    """The numbers of the parts of each block, by the block's number.

    block: the steps of a block; None: each part is a block.
    """
    blocks: dict[int, list[int]] = {}
    for number in sorted(parts):
        key = number if block is None else parts[number].name.step // block
        blocks.setdefault(key, []).append(number)
    return blocks


def blocks_around(
    parts: Mapping[int, Written],
    block: int | None,
    ranges: Sequence[tuple[int, int]],
    max_bytes: int,
) -> set[int]:
    """The numbers of the blocks with steps of these ranges, as many as `max_bytes` holds: the
    latest ranges first, and of each its middle."""
    found: set[int] = set()
    size = 0
    blocks = blocks_of(parts, block)
    for first, last in reversed(ranges):
        away = {
            key: min(abs(2 * parts[n].name.step - first - last) for n in numbers)
            for key, numbers in blocks.items()
            if any(parts[n].name.step <= last and parts[n].last >= first for n in numbers)
        }
        for key in sorted(away.keys() - found, key=lambda key: (away[key], key)):
            size += sum(parts[number].size for number in blocks[key])
            if size > max_bytes:
                return found
            found.add(key)
    return found


def first_to_go(
    parts: Mapping[int, Written], block: int | None, max_bytes: int, late: Set[int] = frozenset()
) -> Iterator[list[int]]:
    """The numbers of the parts in the order of their deletion, those of a block together.

    Newer parts, those of a quarter of `max_bytes`, come last, and the newest part never. Of the
    others those come first whose block's number the fewest powers of two divide: what stays is
    spread evenly, and what two ranks delete is the same but for the last few.

    block: see `blocks_of`.
    late: the numbers of the blocks that go after all others but the newer ones.
    """
    blocks = blocks_of(parts, block)
    order = sorted(blocks, key=lambda key: blocks[key][-1])
    newest = blocks[order[-1]]
    sizes = {key: sum(parts[number].size for number in blocks[key]) for key in blocks}
    recent = sizes[order.pop()]  # the newest block stays as long as others can go
    kept = []
    while order and recent + sizes[order[-1]] <= max_bytes // 4:
        recent += sizes[order[-1]]
        kept.append(order.pop())
    order.sort(key=lambda key: (key & -key or math.inf, key))
    yield from (blocks[key] for key in order if key not in late)
    yield from (blocks[key] for key in order if key in late)
    yield from (blocks[key] for key in reversed(kept))
    yield from ([number] for number in newest[:-1])
