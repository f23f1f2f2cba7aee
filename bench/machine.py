"""machine(), describe(): what a time depends on besides the code."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import cpuinfo
import torch

import hookstats

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@cache
def machine() -> dict[str, Any]:
    """For the JSON of the results."""
    found = cpuinfo.get_cpu_info()
    return {
        "cpu": found.get("brand_raw", "unknown"),
        "cores": os.cpu_count(),
        "last_cache": _CACHE.read_text().strip() if _CACHE.exists() else "unknown",
        "instruction_set": torch.ops.hookstats.cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hookstats": hookstats.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def describe(machine: Mapping[str, Any]) -> str:
    """In one line."""
    return (
        "{cpu}, {cores} cores, L3 {last_cache}, {instruction_set}, "
        "{threads} threads, torch {torch}, Python {python}, hookstats {hookstats}, {date}"
    ).format(**machine)
