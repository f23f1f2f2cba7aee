"""The rank of this process among several."""

from __future__ import annotations

import os

import torch


def current_rank() -> int:
    """This process's rank: of torch.distributed if initialised, else RANK in the environment, or 0.

    Raises:
        ValueError: RANK is not an integer of 0 or more.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    value = os.environ.get("RANK", "0")
    if not value.isdecimal():
        raise ValueError(f"RANK = {value!r} in the environment: expected an integer, 0 or more")
    return int(value)
