"""Copies of the sources and environments, for tests that build and install."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from support.builds import PACKED, run
from support.paths import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a build reads, so that no build leaves anything in the repository."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            # Other processes write to __pycache__ meanwhile.
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy(source, copy)
    # Optimising takes most of a build's time, and changes nothing of what is tested here.
    setup = copy / "setup.py"
    setup.write_text(setup.read_text().replace('"-O3"', '"-O0"'))
    return copy


@pytest.fixture
def isolated(tmp_path: Path) -> dict[str, str]:
    """The environment variables of an isolated build: setuptools can be imported, torch cannot."""
    packages = Path(sysconfig.get_path("purelib"))
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    for package in (*packages.glob("setuptools*"), packages / "_distutils_hack"):
        (overlay / package.name).symlink_to(package)
    (overlay / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [p for p in sys.path if p != {str(packages)!r}]\n"
    )
    return {"PYTHONPATH": str(overlay), "PYTHONNOUSERSITE": "1"}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A virtual environment with nothing in it."""
    venv = tmp_path / "bare"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path).check_returncode()
    return venv
