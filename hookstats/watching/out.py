"""Where a run goes: names with a number that is free."""

from __future__ import annotations

import os
from collections import Counter
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
    """`out` with the first number, from 1 on, whose directory is free, for its `NUMBER`.

    Ranks of a process group take the number that the first of them finds; without a group, a rank
    asks for its own files alone, since other ranks may have begun to write theirs.

    Raises:
        ValueError: out is no path.
    """
    name = str(check_path("out", out))
    if NUMBER not in name:
        return Path(name)
    before = _asked[name]
    _asked[name] += 1
    agreed = agree(f"hookstats.out {before} {name}", str(_free(name, "run*.json")))
    return _free(name, rank_json(current_rank())) if agreed is None else Path(agreed)


def _free(name: str, files: str) -> Path:
    """The first numbered name whose directory has none of these files, a glob."""
    names = (Path(name.replace(NUMBER, str(number))) for number in count(1))
    return next(path for path in names if not any(path.glob(files)))
