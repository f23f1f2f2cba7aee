"""SMOKE, pick(): whether benchmarks only have to run and be right, on tiny tensors."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SMOKE = bool(os.environ.get("HOOKSTATS_BENCH_SMOKE"))
"""As in `make bench-smoke`."""


def pick(full: T, smoke: T) -> T:
    """What a benchmark takes: `full`, or `smoke` where times do not matter."""
    return smoke if SMOKE else full
