"""Where the operator library does not load: doctor says so, and runs are read all the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Result, healthy, write_run
from support.paths import ROOT

import hookstats

pytestmark = pytest.mark.check  # many processes that import torch

PACKAGE = Path(hookstats.__file__).parent


def missing(library: Path) -> None:
    library.unlink()


def for_another_torch(library: Path) -> None:
    """Let the library need a function that this torch does not have."""
    content = library.read_bytes()
    changed = content.replace(b"\0aoti_torch_delete_tensor_", b"\0aoti_torch_remove_tensor_")
    assert changed != content
    library.write_bytes(changed)


BREAKAGES = (missing, for_another_torch)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of hookstats, whose libraries may be broken."""
    shutil.copytree(PACKAGE, tmp_path / "copy" / "hookstats")
    return tmp_path / "copy" / "hookstats"


def broken(package: Path, breaks: Callable[[Path], None]) -> None:
    (library,) = package.glob("_C.*so")
    breaks(library)


def in_copy(package: Path, code: str, cwd: Path = ROOT) -> Result:
    """Run a program that imports the copy."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(package.parent)!r})\n{code}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def doctor(package: Path) -> tuple[Result, dict[str, str]]:
    """What the copy's doctor says, and its lines by what they are about."""
    result = in_copy(package, "from hookstats.cli import main\nraise SystemExit(main(['doctor']))")
    return result, {line[:13].strip(): line[13:] for line in result.out.splitlines()}


@pytest.mark.skipif(sys.platform != "linux", reason="libraries are broken as ELF files are")
@pytest.mark.parametrize("breaks", BREAKAGES, ids=lambda breaks: breaks.__name__)
def test_doctor_says_what_is_broken_and_how_to_mend_it(
    package: Path, breaks: Callable[[Path], None]
) -> None:
    broken(package, breaks)
    result, lines = doctor(package)
    assert (result.code, result.err) == (1, "")
    assert str(package) in lines["hookstats"]
    assert lines["CPU kernels"].startswith("BROKEN: ")
    assert re.search("run `pip install .`, or `make clean build`", lines["CPU kernels"])
    assert lines["CUDA kernels"] == "no: they need the library of the CPU kernels"
    assert lines["self-test"] == "BROKEN: impossible without the CPU kernels"


COMMANDS = [
    ["show", "run"],
    ["top", "run"],
    ["compare", "run", "run"],
    ["report", "run"],
    ["export", "run", "-o", "run.csv"],
    ["export", "run", "-o", "run.parquet"],
    ["export", "run", "-o", "events", "--format", "tensorboard"],
]


def test_every_command_reads_without_the_library(package: Path, tmp_path: Path) -> None:
    broken(package, missing)
    write_run(tmp_path / "run", *map(healthy, range(3)))
    code = f"codes = [main(command) for command in {COMMANDS!r}]\nassert not any(codes), codes"
    result = in_copy(package, f"from hookstats.cli import main\n{code}", cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    for said in ("step 2", "are equal", "run.html", "run.csv", "run.parquet", "events"):
        assert said in result.out


def test_a_run_is_opened_and_shown_without_the_library(package: Path, tmp_path: Path) -> None:
    broken(package, missing)
    write_run(tmp_path / "run", healthy(0))
    code = (
        "import hookstats as hs\n"
        "run = hs.open_run('run')\n"
        "print(run[0]['head', 'output'].rms, hs.rules.replay(run), run._repr_html_())\n"
        "try:\n"
        "    hs.channel_stats\n"
        "except ImportError as error:\n"
        "    assert 'make clean build' in str(error)\n"
        "else:\n"
        "    raise AssertionError('the kernels were loaded')\n"
    )
    result = in_copy(package, code, cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "tensor(" in result.out
