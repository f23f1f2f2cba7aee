"""The C++ hooks, if they were built for the running torch; otherwise the Python hooks serve."""

from __future__ import annotations

import os
import re
import warnings
from types import ModuleType

import torch

_REBUILD = "run `pip install .`, or `make clean build` in a checkout, to build them"


def _load() -> tuple[ModuleType | None, str | None]:
    """The module of the C++ hooks, or the reason that there is none."""
    if os.environ.get("HOOKSTATS_HOOKS") == "python":
        return None, "HOOKSTATS_HOOKS=python in the environment"
    try:
        from hookstats import _hooks
    except ImportError as error:  # not built, or for another torch or Python
        return None, f"{' '.join(str(error).split())}; {_REBUILD}"
    running = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    if running is None or running[0] != _hooks.TORCH_VERSION:
        built = f"they were built for torch {_hooks.TORCH_VERSION}, not {torch.__version__}"
        return None, f"{built}; {_REBUILD} again"
    return _hooks, None


hooks, why_not = _load()
"""The module of the C++ hooks, or None and the reason: not built, for another torch, or not wanted
(HOOKSTATS_HOOKS=python in the environment)."""

if why_not is not None and "HOOKSTATS_HOOKS" not in os.environ:
    warnings.warn(
        f"hookstats: no C++ hooks, the slower Python hooks serve: {why_not}",
        RuntimeWarning,
        stacklevel=2,
    )
