"""Builds of hookstats in other folders and environments: what they read, and how they are run."""

from __future__ import annotations

import os
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


def venv_python(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"
