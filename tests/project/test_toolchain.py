"""What a build says of its machine: one line that names what to install."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from setuptools import Extension
from support.paths import ROOT
from torch.utils import cpp_extension

from hookstats.kernels import native

sys.path.append(str(ROOT / "_build"))

import beside
import joined
import nvcc
import overheard
import toolchain


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with nothing in it."""
    venv = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    return venv / "bin" / "python"


@pytest.mark.parametrize(
    "command",
    [
        ("setup.py", "-q", "build_ext"),
        ("-c", "import sys; sys.path[:0] = ['_build']\nimport backend"),
    ],
)
def test_missing_setuptools_are_named_in_one_line(bare: Path, command: tuple[str, ...]) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([bare, *command], cwd=ROOT, env=clean, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "hookstats needs setuptools >= 77 to be built, and none is installed: "
        "pip install 'setuptools>=77' ninja\n",
    )


def test_old_setuptools_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.require_setuptools()
    monkeypatch.setattr("setuptools.__version__", "65.5.0")
    with pytest.raises(SystemExit, match=r">= 77 to be built, and 65\.5\.0 is installed: pip ins"):
        toolchain.require_setuptools()


def test_missing_headers_of_python_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toolchain.missing_headers() is None
    assert native._first() == ""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"
    assert f"no Python.h: install {package};" in str(toolchain.missing_headers())
    assert native._first().startswith(f"install {package} (on Fedora, python3-devel)")


@pytest.mark.parametrize(
    ("available", "limit", "jobs"),
    [
        (64_000_000, "max", 4),
        (2_600_000, "max", 2),
        (2_480_000, "max", 1),  # two, and the C++ hooks' beside them, would take 2.54 GB
        (64_000_000, "1900000000", 1),
        (64_000_000, "3100000000", 2),
        (1, "max", 1),
    ],
)
def test_as_many_compilers_as_fit_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: int, limit: str, jobs: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable:   {available} kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("3000000000\n")
    # What files were read stays in memory until it is needed, and counts as used.
    (tmp_path / "memory.stat").write_text("anon 400000000\ninactive_file 2500000000\n")
    free = toolchain._free_memory(meminfo, tmp_path)
    monkeypatch.setattr(toolchain, "_free_memory", lambda: free)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    told = toolchain.limit_jobs()
    assert os.environ["MAX_JOBS"] == str(jobs)
    assert (told is None) == (jobs == 4)
    monkeypatch.setenv("MAX_JOBS", "0")  # without a limit, ninja would say
    assert toolchain.limit_jobs() == told
    assert os.environ["MAX_JOBS"] == str(jobs)
    monkeypatch.setenv("MAX_JOBS", "9")
    assert toolchain.limit_jobs() is None
    assert os.environ["MAX_JOBS"] == "9"


def test_a_system_that_does_not_tell_its_memory_has_no_limit(tmp_path: Path) -> None:
    assert toolchain._free_memory(tmp_path / "none", tmp_path) is None


def test_the_first_error_of_a_compiler_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "broken.cpp"
    source.write_text("#warning first\n#include <nothing.h>\n")
    with overheard.Overheard() as said:
        done = subprocess.run([os.environ.get("CXX", "c++").split()[-1], "-c", source])
        print("afterwards")
    assert done.returncode != 0
    found = overheard.first_error(said.lines)
    assert found is not None
    assert "broken.cpp:2:" in found
    assert "error: nothing.h" in found or "error: 'nothing.h'" in found
    out, err = capfd.readouterr()
    assert "nothing.h" in err
    assert out == "afterwards\n"


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("/usr/bin/ld: cannot find -ltorch: No such file or directory", True),
        ("a.cpp:(.text+0x5): undefined reference to `f()'", True),
        ('update.cu(3): error: identifier "x" is undefined', True),
        ("collect2: error: ld returned 1 exit status", False),
        ("a.cpp:1:2: warning: an error: no", False),
        ("[1/9] c++ -c error.cpp", False),
    ],
)
def test_which_lines_are_errors(line: str, is_error: bool) -> None:
    assert overheard.first_error(["c++ -c a.cpp\n", line + "\n"]) == (line if is_error else None)


@pytest.mark.parametrize(
    ("version", "torch_cuda", "newer"),
    [
        ("13.0", "13.2", False),
        ("13.2", "13.0", False),
        ("12.8", "13.0", False),
        ("13.0", "12.8", True),
        ("13.0", None, False),
    ],
)
def test_an_nvcc_newer_than_torch_is_named(
    version: str, torch_cuda: str | None, newer: bool
) -> None:
    told = nvcc.warning_for(nvcc.Nvcc("nvcc", Path("cuda"), version), torch_cuda)
    assert (told is not None) == newer
    if told is not None:
        assert told.startswith("nvcc 13.0 is newer than torch's CUDA 12.8: the CUDA kernels need ")


@pytest.mark.parametrize(
    ("gpus", "wanted", "expected"),
    [
        ("9.0\n9.0\n", None, ["sm_90"]),
        ("9.0\n8.6\n", None, ["sm_86", "sm_90"]),
        ("12.0\n", None, ["sm_80", "sm_90+PTX"]),  # newer than nvcc knows
        (None, None, ["sm_80", "sm_90+PTX"]),
        ("9.0\n", "8.0;8.6+PTX", ["sm_80", "sm_86+PTX"]),
    ],
)
def test_kernels_are_for_the_gpus_that_are_there(
    gpus: str | None,
    wanted: str | None,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = "compute_80\ncompute_86\ncompute_90\n"
    for name, prints in (("nvidia-smi", gpus), ("nvcc", known)):
        if prints is not None:
            (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{prints}'\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if wanted is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wanted)
    found = nvcc.targets(nvcc.Nvcc(str(tmp_path / "nvcc"), tmp_path, "13.0"))
    assert [str(target) for target in found] == expected


def test_joined_files_are_compiled_at_once_and_again_where_one_changed(tmp_path: Path) -> None:
    """And for another torch, too: compilers do not name system headers, which torch's are here."""
    first, second = (tmp_path / "csrc" / name for name in ("first.cpp", "second.cpp"))
    first.parent.mkdir()
    first.write_text("constexpr int kFirst = 1;\n")
    second.write_text("static_assert(kFirst == 1);\n")

    def join(torch: str = "2.10.0") -> Path:
        names = [str(file.relative_to(tmp_path)) for file in (first, second)]
        extension = Extension("some.library", names, include_dirs=[str(first.parent)])
        joined.join(extension, tmp_path, tmp_path / "build", torch)
        assert extension.depends == names  # without ninja, setuptools looks there
        (whole,) = extension.sources
        return tmp_path / whole

    def compiles(whole: Path) -> bool:
        command = ("c++", "-std=c++20", "-fsyntax-only", "-I", first.parent, whole)
        return subprocess.run(command, capture_output=True).returncode == 0

    whole = join()
    os.utime(whole, (1, 1))
    assert compiles(whole)
    assert join().stat().st_mtime == 1
    first.write_text("constexpr int kFirst = 2;\n")
    assert not compiles(whole)
    first.rename(first.with_name("before.cpp"))
    first = first.with_name("before.cpp")
    assert join().stat().st_mtime > 1
    os.utime(whole, (1, 1))
    assert join("2.10.0+cu128").stat().st_mtime > 1


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Extension]:
    """What setup.py has compiled, by the libraries' names."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    return {extension.name: extension for extension in given["ext_modules"]}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_work_beside_is_done_or_says_why_not(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def fail() -> None:
        raise OSError("no such compiler")

    works = [beside.start(work) for work in (made.touch, fail, lambda: os.kill(os.getpid(), 9))]
    works[0]()
    assert made.exists()
    with pytest.raises(RuntimeError, match=r"^no such compiler$"):
        works[1]()
    with pytest.raises(RuntimeError, match=r"^its process ended with exit code -9$"):
        works[2]()


def test_the_hooks_read_the_headers_of_few_operators(extensions: dict[str, Extension]) -> None:
    """Half of what they would read else is the list of all operators."""
    of_hooks = extensions["hookstats._hooks"]
    text = "".join(f'#include "{ROOT / file}"\n' for file in of_hooks.sources)
    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include"), ROOT / "csrc"]
    command = ["c++", *of_hooks.extra_compile_args, *(f"-I{folder}" for folder in folders)]
    done = subprocess.run(
        [*command, "-M", "-x", "c++", "-"], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "/ATen/ops/empty_strided.h" in done.stdout
    assert "/ATen/Functions.h" not in done.stdout


def test_make_without_python_names_what_to_install(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    command = ["make", "PYTHON=python3.99", f"VENV={venv}", f"{venv}/bin/python"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "hookstats: no python3.99: install python3 and python3-venv (Debian, Ubuntu), "
        "or set PYTHON to a Python >= 3.10"
    )
