"""DiskNotice: says what a run takes on the disk, and when its first steps are about to go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hookstats.runs.encode import PartBuilder, Rows
from hookstats.stats.notice import say, size

Encode = Callable[[Sequence[Any]], Any]


class DiskNotice:
    """Measures the first two steps of a rank, and says what those of all ranks will take.

    The first step is encoded alone, and then with the second one: the difference is what a step
    adds to a part. The rest is what a part costs by itself, which all its steps share. Where few
    steps have channels, the first one is the first that has them, and the second one has none.

    Args:
        path: the run directory.
        every: how many steps lie between two that are recorded.
        channels_every: of how many of these one has channels, the others whole tensors alone.
        ranks: how many ranks write the run.
        max_bytes: the most bytes of a rank; None for any number.
        seconds_per_part: the time between two parts.
    """

    def __init__(
        self,
        path: Path,
        every: int,
        channels_every: int,
        ranks: int,
        max_bytes: int | None,
        seconds_per_part: float,
    ) -> None:
        self._path = path
        self._every = every
        self._channels_every = channels_every
        self._ranks = ranks
        self._most = None if max_bytes is None else max_bytes * ranks
        self._seconds = seconds_per_part
        self._first: tuple[Rows, float] | None = None
        self._done = False

    def add(self, rows: Rows, schema: Any, encode: Encode, *, has_channels: bool = True) -> None:
        """Take the rows of a step; with the second one, say what steps take."""
        are_alike = self._channels_every == 1
        if self._done or not (are_alike or has_channels == (self._first is None)):
            return
        now = time.monotonic()
        if self._first is None:
            self._first = rows, now
            return
        first, began = self._first
        self._done, self._first = True, None
        alone, both = (_size(each, schema, encode) for each in ([first], [first, rows]))
        step = max(both - alone, 1.0)
        if not are_alike:
            part = max(_size([rows], schema, encode) - step, 0.0)
            step += max(alone - part - step, 0.0) / self._channels_every
        share = min(1.0, (now - began) / self._seconds) if self._seconds else 1.0
        per_step = (step + max(alone - step, 0) * share) * self._ranks / self._every
        what = f"{self._path} takes about {size(1000 * per_step)} per 1,000 steps"
        if self._most is None:
            say(f"{what}, without a limit (max_bytes=None)")
        else:
            after = float(f"{self._most / per_step:.1e}")
            say(
                f"{what}; old steps are thinned above {size(self._most)} (max_bytes), after about "
                f"{after:,.0f} steps"
            )

    def before_thinning(self) -> None:
        """Say that steps will be deleted."""
        say(
            f"{self._path} has reached {size(self._most or 0)} (max_bytes): from now on old steps "
            "are thinned, never new ones"
        )


def _size(steps: Sequence[Rows], schema: Any, encode: Encode) -> int:
    """The bytes of a part with these steps."""
    builder = PartBuilder(schema, encode, 1 << 30)
    for rows in steps:
        builder.add(rows)
    return int(builder.finish("{}").size)
