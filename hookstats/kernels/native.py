"""The C++ hooks, if they were built for the running torch; otherwise the Python hooks serve."""

from __future__ import annotations

import os
import re
import sysconfig
import warnings
from pathlib import Path
from types import ModuleType

import torch

_REBUILD = "run `pip install .`, or `make clean build` in a checkout, to build them"


def _first() -> str:
    """What has to be installed before a build can have the hooks."""
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        return ""
    version = sysconfig.get_python_version()
    return f"install python{version}-dev (on Fedora, python3-devel) for Python.h, then "


def _load() -> tuple[ModuleType | None, str | None]:
    """The module of the C++ hooks, or the reason that there is none."""
    if os.environ.get("HOOKSTATS_HOOKS") == "python":
        return None, "HOOKSTATS_HOOKS=python in the environment"
    try:
        from hookstats import _hooks
    except ImportError as error:  # not built, or for another torch or Python
        problem = " ".join(str(error).split())
        if "undefined symbol" in problem:
            problem = f"they were built for another torch than {torch.__version__} ({problem})"
        return None, f"{problem}; {_first()}{_REBUILD}"
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
