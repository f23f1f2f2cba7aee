"""The C++ hooks, if they were built for the running torch; otherwise the Python hooks serve."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import torch

from hookstats.stats.messages import warn

_REBUILD = (
    "run `pip install .` in the sources of hookstats, or `make clean build` in a checkout, "
    "to build them"
)


def _first() -> str:
    """What has to be installed before a build can have the hooks."""
    if Path(sysconfig.get_path("include"), "Python.h").is_file():
        return ""
    version = sysconfig.get_python_version()
    return f"install python{version}-dev (on Fedora, python3-devel) for Python.h, then "


def _library() -> Path | None:
    """The library of the C++ hooks, if there is one: of those in a wheel, that for this torch.

    Patch releases of torch keep the layout of its classes: a wheel has one for each minor release.
    """
    package = Path(__file__).parents[1]
    minor = "_".join(torch.__version__.split(".")[:2])
    folders = (package / f"torch_{minor}", package)
    libraries = [folder / f"_hooks{suffix}" for folder in folders for suffix in EXTENSION_SUFFIXES]
    return next(filter(Path.is_file, libraries), None)


def made_for() -> str | None:
    """The version of torch that the library of the C++ hooks was built for, such as "2.13.0"; None
    where there is no library.

    The version is read in the file: a library for another torch need not load, and may do harm.
    """
    library = _library()
    if library is None:
        return None
    found = re.search(rb"hookstats hooks for torch (\d+\.\d+\.\d+)", library.read_bytes())
    return found[1].decode() if found else "of no known version"


def _load() -> tuple[ModuleType | None, str | None]:
    """The module of the C++ hooks, or the reason that there is none."""
    if os.environ.get("HOOKSTATS_HOOKS") == "python":
        return None, "HOOKSTATS_HOOKS=python in the environment"
    library, version = _library(), made_for()
    if library is not None and library.parent.name.startswith("torch_"):
        return _of_wheel(library)
    running = re.match(r"\d+\.\d+\.\d+", torch.__version__)
    if version is not None and (running is None or running[0] != version):
        return None, f"they are for torch {version}, not {torch.__version__}; {_REBUILD} again"
    try:
        from hookstats import _hooks
    except ImportError as error:  # not built, or damaged
        return None, f"{' '.join(str(error).split())}; {_first()}{_REBUILD}"
    return _hooks, None


def _of_wheel(library: Path) -> tuple[ModuleType | None, str | None]:
    """The C++ hooks in `library`, one of several in a wheel."""
    spec = importlib.util.spec_from_file_location("hookstats._hooks", library)
    if spec is None or spec.loader is None:
        return None, f"{library.name} is no library of this Python; {_REBUILD}"
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        return None, f"{' '.join(str(error).split())}; {_REBUILD}"
    sys.modules[spec.name] = module
    return module, None


hooks, why_not = _load()
"""The module of the C++ hooks, or None and the reason: not built, for another torch, or not wanted
(HOOKSTATS_HOOKS=python in the environment)."""

if why_not is not None and "HOOKSTATS_HOOKS" not in os.environ:
    warn(f"hookstats: no C++ hooks, the slower Python hooks serve: {why_not}")
