"""make matrix: what it reads in logs, and the table that it writes."""

from __future__ import annotations

import os
import shutil
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


def row(torch: str, tests: str = "1 passed", python: str = "3.11.7") -> matrix.Row:
    return matrix.Row(torch, python, *["built"] * 3, "ok", tests, "not tried", "2026-01-02")


def test_what_a_build_says() -> None:
    assert matrix.built(LOG) == (
        "built",
        "no: no Python.h: install a",
        "no: no nvcc: install the CUDA toolkit, or set CUDA_HOME",
    )
    assert matrix.built("") == ("not built",) * 3


@pytest.mark.parametrize(
    ("log", "tests", "without", "said"),
    [
        ("F.\n1 failed, 20 passed, 3 skipped in 2.00s\n", [], [], "1 failed, 20 passed"),
        ("= 2 passed, 1 error in 9s =", ["tests/a"], [], "2 passed, 1 error of tests/a"),
        ("3 passed in 1s", [], ["tests/a", "tests/b"], "3 passed of all but tests/a, tests/b"),
        ("3 passed in 1s", ["tests/a"], ["tests/a/b.py"], "3 passed of tests/a but tests/a/b.py"),
        ("usage: pytest", [], [], "not run"),
    ],
)
def test_what_pytest_says(log: str, tests: list[str], without: list[str], said: str) -> None:
    assert matrix.tested(log, tests, without) == said


def test_a_row_takes_the_place_of_the_one_before() -> None:
    page = matrix.PAGE.read_text()
    empty = page.partition(matrix.BEGIN)[0] + matrix.BEGIN + "|||\n|||\n" + matrix.END + "text\n"
    empty = matrix.with_row(empty, row("2.15.0+cu132", python="3.13.5"))
    for torch in ("2.15.0+cu132", "2.9.1", "2.10.0+cu128"):
        empty = matrix.with_row(empty, row(torch))
    page = matrix.with_row(empty, row("2.15.0+cpu", "2 passed", python="3.11.9"))
    lines = matrix.table_of(page).splitlines()
    assert [line.split("|")[1:3] for line in lines[2:]] == [
        [" 2.9.1 ", " 3.11.7 "],
        [" 2.10.0+cu128 ", " 3.11.7 "],
        [" 2.15.0+cpu ", " 3.11.9 "],
        [" 2.15.0+cu132 ", " 3.13.5 "],
    ]
    assert "| 2 passed |" in lines[-2]
    assert page.endswith("text\n")


def test_the_page_has_a_table() -> None:
    lines = matrix.table_of(matrix.PAGE.read_text()).splitlines()
    assert lines[0] == f"| {' | '.join(matrix.COLUMNS)} |"
    assert all(line.count(" | ") == len(matrix.COLUMNS) - 1 for line in lines[2:])


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
    before = matrix.PAGE.read_text()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    begun, failed = done.stdout.splitlines()[:2]
    assert begun == f"matrix: torch 0.0.0: see {tmp_path / '0.0.0' / 'log.txt'}"
    assert failed.startswith("matrix: torch 0.0.0: ")
    assert "exit code 1; see " in failed
    assert "no matching distribution" in (tmp_path / "0.0.0" / "log.txt").read_text()
    assert matrix.PAGE.read_text() == before


def test_a_python_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        matrix.main(["--torch", "0.0.0", "--python", "no/python"])
    assert "--python is 'no/python': expected a Python that runs here" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_hands_on_what_is_chosen() -> None:
    kept = {"PATH": os.environ["PATH"]}

    def command(*chosen: str) -> str:
        done = subprocess.run(
            ["make", "-n", "matrix", *chosen], cwd=ROOT, env=kept, capture_output=True, text=True
        )
        return " ".join(done.stdout.replace("\\\n", "").split())

    assert " --without tests/a tests/b --python /opt/python " in command(
        "PYTHON=/opt/python", "WITHOUT=tests/a tests/b"
    ).replace('"', "")
    assert " bench.matrix --torch 2.15.0 --jobs " in command("TORCH=2.15.0")
