"""The rank of this process among several, and what all of them know of their process group."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import cache
from typing import Any

import torch

from hookstats._torch import agree


def current_rank() -> int:
    """This process's rank: of torch.distributed if initialised, else RANK in the environment, or 0.

    Raises:
        ValueError: RANK is not an integer of 0 or more, of at most nine digits.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    value = os.environ.get("RANK") or "0"
    if not (value.isdecimal() and len(value) < 10):
        raise ValueError(f"RANK = {value!r} in the environment: expected an integer, 0 or more")
    return int(value)


def world_size() -> int:
    """How many ranks there are: of torch.distributed if initialised, else WORLD_SIZE in the
    environment, or 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    value = os.environ.get("WORLD_SIZE") or "1"
    return max(int(value) if value.isdecimal() and len(value) < 10 else 1, current_rank() + 1)


def current_world() -> dict[str, Any] | None:
    """How many ranks there are, and when the first of them asked; None where RANK or WORLD_SIZE is
    in the environment, and there is no process group.

    The text of `started` is the same on all ranks, and later in a process group that starts later:
    the first rank that asks leaves the text in the group's store. No rank waits for another. A
    process without ranks is a group of one.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        by_hand = os.environ.get("RANK") or os.environ.get("WORLD_SIZE")
        return None if by_hand else {"size": 1, "started": _asked_alone()}
    started = agree("hookstats.started", _now())
    size = torch.distributed.get_world_size()
    return {"size": size} if started is None else {"size": size, "started": started}


@cache
def _asked_alone() -> str:
    """When this process first asked."""
    return _now()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")
