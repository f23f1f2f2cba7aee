"""Where a run goes: names with a number that is free."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

from hookstats._torch import agree
from hookstats.runs.format import rank_json
from hookstats.runs.world import current_rank
from hookstats.stats.arguments import check_path

NUMBER = "{n}"
"""What a number takes the place of in `out`."""


_asked: Counter[str] = Counter()  # how often this process asked for each name


def numbered(out: str | os.PathLike[str]) -> Path:
    """`out` with the first number, from 1 on, whose directory is free, for its `NUMBER`; see
    `first_free`.

    Raises:
        ValueError: out is no path.
    """
    name = str(check_path("out", out))
    if NUMBER not in name:
        return Path(name)
    return first_free(name, lambda number: Path(name.replace(NUMBER, str(number + 1))))


def first_free(key: str, name: Callable[[int], Path], *, resumed: bool = False) -> Path:
    """The first of the names of 0, 1, 2, ... whose directory has no run.

    Ranks of a process group take the name that the first of them finds, whatever the others have
    begun to write since then; without a group, a rank asks for its own files alone.

    Args:
        key: stands for these names, on every rank.
        name: the name of a number.
        resumed: whether a training run goes on: then the last name that is taken, if any is.
    """
    before = _asked[key]
    _asked[key] += 1
    found = agree(f"hookstats.out {before} {key}", str(_free(name, "run*.json", resumed)))
    return _free(name, rank_json(current_rank()), resumed) if found is None else Path(found)


def _free(name: Callable[[int], Path], files: str, resumed: bool) -> Path:
    """As `first_free`; a name is taken if its directory has one of these files, a glob."""
    free = next(number for number in count() if not any(name(number).glob(files)))
    return name(free - 1 if resumed and free else free)
