"""Where a run goes: names with a number that is free, or nowhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from hookstats._torch import agree
from hookstats.runs import remote
from hookstats.runs.remote import is_url
from hookstats.runs.world import world_size
from hookstats.stats.arguments import check_path

NUMBER = "{n}"
"""What a number takes the place of in `out`."""


_nowhere = 0  # how many contexts of `nowhere` are open


@contextmanager
def nowhere() -> Iterator[None]:
    """In this context, watches write no run, whatever their `out` is: what is there stays."""
    global _nowhere
    _nowhere += 1
    try:
        yield
    finally:
        _nowhere -= 1


def is_nowhere() -> bool:
    """Whether a context of `nowhere` is open."""
    return _nowhere > 0


_asked: Counter[str] = Counter()  # how often a name was asked for: on each rank as often


def numbered(out: str | os.PathLike[str]) -> str:
    """`out`, a path or a URL, with the first number, from 1 on, whose directory is free, for its
    `NUMBER`.

    Raises:
        ValueError: out is no path; or see `agreed`.
    """
    name = out if is_url(out) else str(check_path("out", out))
    if NUMBER not in name:
        return name
    names = (name.replace(NUMBER, str(number)) for number in count(1))
    return agreed(name, lambda: next(each for each in names if not is_taken(each)))


def is_taken(name: str) -> bool:
    """Whether there is a run at a path or a URL, of whatever ranks, or one that begins."""
    if is_url(name):
        return remote.is_taken(name)
    return any(any(Path(name).glob(pattern)) for pattern in ("run*.json", ".lock-*"))


def agreed(name: str, find: Callable[[], str]) -> str:
    """The free name that `find` finds for `name`. Ranks of a process group take the one that the
    first of them finds, whatever the others have begun to write in the meantime.

    Raises:
        ValueError: there are several ranks, and they have no process group through which to agree:
            each by itself could take a finished run of fewer ranks for free.
    """
    before = _asked[name]
    _asked[name] += 1
    found = find()
    of_all = agree(f"hookstats.out {before} {name}", found)
    ranks = world_size()
    if of_all is None and ranks > 1:
        raise ValueError(
            f"out = {name!r}: {ranks} ranks without a process group cannot agree on a free number; "
            "expected torch.distributed to be initialised before, or an out that is the same on "
            "all ranks and needs no number"
        )
    return found if of_all is None else of_all
