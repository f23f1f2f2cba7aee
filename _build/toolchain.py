"""What a build needs around it - Python, setuptools, torch, a C++20 compiler, memory - found or
refused in one line.

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
import sysconfig
from pathlib import Path
from typing import NamedTuple

MINIMUM_PYTHON = (3, 10)
MINIMUM_TORCH = (2, 10)
MINIMUM_SETUPTOOLS = 77  # the first that reads pyproject.toml's license
TORCH_REQUIREMENT = "torch>=2.10"

MEMORY_OF_A_COMPILER = 1.0
"""GB (10^9 bytes) that are counted for each compiler. g++ 12 takes 0.53 for a kernel's file."""

MEMORY_BESIDE = 0.55
"""GB that are kept for what else runs. The compiler of the C++ hooks, 1.22 GB, is one more where
there are at least two jobs: the peak of two is 2.45, and 2.54 where torch has CUDA."""

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


def require_setuptools() -> None:
    """Ends the build if setuptools is missing or too old, as it may be without build isolation."""
    try:
        import setuptools

        found = f"{setuptools.__version__} is"
        if int(setuptools.__version__.partition(".")[0]) >= MINIMUM_SETUPTOOLS:
            return
    except ImportError:
        found = "none is"
    raise SystemExit(
        f"hookstats needs setuptools >= {MINIMUM_SETUPTOOLS} to be built, and {found} installed: "
        f"pip install 'setuptools>={MINIMUM_SETUPTOOLS}' ninja"
    )


def missing_headers() -> str | None:
    """Why C++ cannot be compiled for this Python; None if Python.h is there."""
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        return None
    version = sysconfig.get_python_version()
    return f"no Python.h: install python{version}-dev; on Fedora, python3-devel"


def limit_jobs() -> str | None:
    """Sets MAX_JOBS, where it is no number of compilers, to what cores and memory allow.

    Returns what to tell if the memory is what limits them.
    """
    asked = os.environ.get("MAX_JOBS", "")
    if asked.isdigit() and int(asked) > 0:  # ninja takes 0 for no limit
        return None
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    free = _free_memory()
    fitting = cores if free is None else int((free - MEMORY_BESIDE) / MEMORY_OF_A_COMPILER)
    jobs = max(1, min(cores, fitting))
    os.environ["MAX_JOBS"] = str(jobs)
    if free is None or jobs == cores:
        return None
    return f"{jobs} of {cores} cores compile, as {free:.1f} GB of memory are free; see MAX_JOBS"


def _free_memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """The memory that processes may still take, in GB; None where Linux does not say."""
    found = []
    try:
        kilobytes = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        found += [int(kilobytes[1]) * 1024] if kilobytes else []
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used = int((cgroup / "memory.current").read_text())
            # Files that were read, such as torch's, are let go where memory is needed.
            stat = (cgroup / "memory.stat").read_text()
            files = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            found.append(int(limit) - used + (int(files[1]) if files else 0))
    except OSError:
        pass  # no Linux, or a system without such limits
    return min(found) / 1e9 if found else None


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
