"""Thinning: which steps of old parts go first to keep to `max_bytes`.

Of the older three quarters, steps that are no multiple of 2 go first, then of 4, and so
on: what stays is spread evenly, and all ranks keep the same steps, but for the last few. Steps
around incidents go last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from hookstats.runs.format import PartName

MOST_LEVEL = 62
"""The level at which steps go that every power of two divides, or that are around incidents."""


class Written(NamedTuple):
    """A part that is on the disk."""

    name: PartName
    steps: tuple[int, ...]
    """The steps of its records."""
    size: int
    """Its bytes in all directories."""


def reductions(
    parts: Sequence[Written], incidents: Sequence[tuple[int, int]], max_bytes: int
) -> Iterator[tuple[Written, int, tuple[int, ...]]]:
    """What is to go, in this order, until the parts are small enough; the newest part stays.

    Each is a part, its new `PartName.thinned`, and the steps that stay.

    Args:
        parts: in order of writing; they follow what was done about the reductions before.
        incidents: between which steps incidents are, the latest ones last.
        max_bytes: the bytes that the parts may have.
    """
    kept = _around(parts, incidents, max_bytes // 2)
    newest, older = 0, len(parts)
    while older > 0 and newest + parts[older - 1].size <= max_bytes // 4:
        older -= 1
        newest += parts[older].size
    older = min(older, len(parts) - 1)
    left = list(parts)
    for level in range(1, MOST_LEVEL):
        divisor = 1 << level
        for i, part in enumerate(left[:older]):
            steps = tuple([s for s in part.steps if s % divisor == 0 or s in kept])
            if len(steps) < len(part.steps):
                yield part, max(level, part.name.thinned + 1), steps
                left[i] = part._replace(steps=steps)
        if all(step == 0 or step in kept for part in left[:older] for step in part.steps):
            break
    for part in left[:-1]:
        yield part, MOST_LEVEL, ()


def _around(
    parts: Sequence[Written], incidents: Sequence[tuple[int, int]], max_bytes: int
) -> Collection[int]:
    """The steps of incidents that stay, as many as `max_bytes` holds: those of the latest first,
    and of each its middle."""
    found: set[int] = set()
    size_of = {step: p.size / max(1, len(p.steps)) for p in parts for step in p.steps}
    left = float(max_bytes)
    for first, last in reversed(incidents):
        inside = [step for step in size_of if first <= step <= last and step not in found]
        for step in sorted(inside, key=lambda step: abs(2 * step - first - last)):
            left -= size_of[step]
            if left < 0:
                return found
            found.add(step)
    return found
