"""Builds of hookstats in other folders and environments: what they read, and how they are run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKED = (
    "_build",
    "csrc",
    "hookstats",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "setup.py",
)
"""What a build reads."""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command's result, run with variables beside those of this process."""
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )


def unoptimized(folder: Path) -> dict[str, str]:
    """The environment of builds by a compiler that does not optimize, for tests in which libraries
    need not be quick: a sixth of the time. `folder` gets the compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++").split()[-1])
    folder.mkdir(parents=True, exist_ok=True)
    # Of a name of its own: ccache looks for the compiler of its own name, and would find this one.
    quick = folder / "unoptimized"
    quick.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0 -U_FORTIFY_SOURCE\n')
    quick.chmod(0o755)
    return {"CXX": str(quick)}


def venv_python(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"
