"""machine(), device_facts(): what a time depends on besides the code."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

import hookstats
import hookstats.kernels.ops  # registers cpu_capability

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@cache
def machine() -> dict[str, Any]:
    """For the JSON of a CPU's results."""
    import cpuinfo  # comes with pytest-benchmark, which a check of a GPU does without

    found = cpuinfo.get_cpu_info()
    return {
        "cpu": found.get("brand_raw", "unknown"),
        "cores": os.cpu_count(),
        "last_cache": _CACHE.read_text().strip() if _CACHE.exists() else "unknown",
        "instruction_set": torch.ops.hookstats.cpu_capability(),
        "threads": torch.get_num_threads(),
        **_software(),
    }


def _software() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hookstats": hookstats.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def device_facts(device: torch.device) -> dict[str, Any]:
    """For the JSON of a device's results."""
    if device.type != "cuda":
        return {"device": f"{platform.machine()} CPU", **_software()}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        driver = said.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver,
        "cuda": torch.version.cuda,
        **_software(),
    }
