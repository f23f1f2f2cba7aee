"""What a build needs around it - Python, torch, a C++20 compiler - found or refused in one line.

Torch is looked for in this process first, then in the environment that the build is for: an
installer's isolated build hides the latter's packages, but runs on its interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MINIMUM_PYTHON = (3, 10)
MINIMUM_TORCH = (2, 10)
TORCH_REQUIREMENT = "torch>=2.10"

# Rejects what parses -std=c++20 but lacks parts of it, and g++ before __builtin_shufflevector.
_CXX20_PROBE = """
#include <bit>
#include <concepts>
#include <span>
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "g++ older than 12"
#endif
static_assert(__cplusplus >= 202002L && std::endian::native == std::endian::little);
"""


class Torch(NamedTuple):
    """A torch that was found: its version and the search path that imports it."""

    version: str
    path: list[str]


def require_python() -> None:
    """Ends the build if this Python is too old."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SystemExit(
            f"hookstats needs Python >= 3.10, but this is {sys.version.split()[0]}: "
            "install it with a newer one"
        )


def find_torch() -> Torch | None:
    """The torch that this process or, if it has none, the target environment can import."""
    return _torch_here() or _torch_in_target()


def require_recent(torch: Torch) -> None:
    """Ends the build if torch lacks the stable ABI that hookstats is built on."""
    release = re.match(r"(\d+)\.(\d+)", torch.version)
    if release is None or tuple(map(int, release.groups())) < MINIMUM_TORCH:
        raise SystemExit(
            f"hookstats needs torch >= 2.10, but this environment has {torch.version}: "
            "pip install --upgrade torch"
        )


def expose_torch() -> Torch:
    """Makes the found torch importable in this process, after everything that already is."""
    torch = find_torch()
    if torch is None:
        raise SystemExit(
            "hookstats is built against torch, but this environment has none: pip install torch"
        )
    require_recent(torch)
    sys.path.extend(entry for entry in torch.path if entry not in sys.path)
    return torch


def require_compiler() -> str:
    """The C++ compiler's command; ends the build if the compiler cannot compile C++20."""
    command = os.environ.get("CXX", "c++")
    probe = [*shlex.split(command), "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(probe, input=_CXX20_PROBE, capture_output=True, text=True)
        problem = "" if done.returncode == 0 else f"{command} does not compile C++20"
    except OSError as error:
        problem = f"{command}: {error.strerror}"
    if problem:
        raise SystemExit(
            f"hookstats needs a C++20 compiler: install g++ >= 12 or set CXX ({problem})"
        )
    return command


def _torch_here() -> Torch | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"]
    return Torch(version, list(sys.path))


def _torch_in_target() -> Torch | None:
    # -E drops the PYTHONPATH by which an isolated build hides the environment's packages.
    command = [sys.executable, "-E", str(Path(__file__).resolve())]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found and Torch(*found)


if __name__ == "__main__":
    del sys.path[0]  # this folder
    json.dump(_torch_here(), sys.stdout)
