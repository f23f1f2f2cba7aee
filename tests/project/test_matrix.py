"""make matrix: what it reads in logs, and what it does where a version cannot be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))

from bench import matrix

of_a_checkout = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="git lists the sources, and this is no checkout"
)

THIS_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LOG = """
  hookstats: built the CPU operators with c++ against torch 2.11.0+cu130
  hookstats: C++ hooks: not built, the Python hooks will serve (no Python.h: install a; on Fedora b)
  hookstats: CUDA kernels: not built (no nvcc: install the CUDA toolkit, or set CUDA_HOME)
"""


def test_what_a_build_says() -> None:
    assert matrix.built(LOG) == (
        "built",
        "no: no Python.h: install a",
        "no: no nvcc: install the CUDA toolkit, or set CUDA_HOME",
    )
    assert matrix.built("") == ("not built",) * 3


def test_what_pytest_says() -> None:
    log = "F.\n1 failed, 20 passed, 3 skipped in 2.00s\n"
    assert matrix.tested(log, []) == "1 failed, 20 passed"
    assert (
        matrix.tested("= 2 passed, 1 error in 9s =", ["tests/a"]) == "2 passed, 1 error of tests/a"
    )
    assert matrix.tested("usage: pytest", []) == "not run"


@of_a_checkout
def test_a_fresh_copy_of_the_sources_keeps_what_was_built_alone(tmp_path: Path) -> None:
    for stale in ("hookstats/_C.abi3.so", "stale.py", "build/objects/sums.o"):
        (tmp_path / stale).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stale).touch()
    matrix.lay_sources(tmp_path)
    assert not (tmp_path / "hookstats" / "_C.abi3.so").exists()
    assert not (tmp_path / "stale.py").exists()
    assert (tmp_path / "build" / "objects" / "sums.o").is_file()
    for name in ("setup.py", "hookstats/kernels/native.py", "csrc/core/state.h"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


@of_a_checkout
def test_a_version_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
    python = tmp_path / "0.0.0" / THIS_PYTHON / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ERROR: no matching distribution'; exit 1\n")
    python.chmod(0o755)
    command = [sys.executable, "-m", "bench.matrix", "--torch", "0.0.0", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    begun, failed = done.stdout.splitlines()[:2]
    assert begun == f"matrix: torch 0.0.0: see {tmp_path / '0.0.0' / 'log.txt'}"
    assert failed.startswith("matrix: torch 0.0.0: ")
    assert "exit code 1; see " in failed
    assert "no matching distribution" in (tmp_path / "0.0.0" / "log.txt").read_text()
