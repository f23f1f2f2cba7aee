"""Building and installing: what a build asks for, what it packs, and how it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from support.builds import PACKED, run, unoptimized, venv_python
from support.paths import ROOT

sys.path.append(str(ROOT / "_build"))

import nvcc

pytestmark = pytest.mark.check


def requirements(
    python: str | Path, project: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """What the backend asks for in an isolated build on the interpreter."""
    code = (
        "import contextlib, os, sys\n"
        "sys.path.insert(0, '_build')\n"
        "import backend\n"
        "with contextlib.redirect_stdout(sys.stderr):\n"
        "    asked = backend.get_requires_for_build_wheel()\n"
        "print(asked)\n"
    )
    return run(python, "-c", code, cwd=project, **environment)


def test_torch_is_not_asked_for_where_it_is_installed(
    project: Path, isolated: dict[str, str]
) -> None:
    hidden = run(sys.executable, "-c", "import torch", cwd=project, **isolated)
    assert "No module named 'torch'" in hidden.stderr
    asked = requirements(sys.executable, project, isolated)
    assert asked.stdout == "[]\n", asked.stderr


def test_torch_is_asked_for_where_none_is_installed(
    project: Path, isolated: dict[str, str], bare: Path
) -> None:
    asked = requirements(venv_python(bare), project, isolated)
    assert asked.stdout == "['torch>=2.10']\n", asked.stderr


def test_an_old_torch_is_refused_in_one_line(
    project: Path, isolated: dict[str, str], bare: Path
) -> None:
    (packages,) = bare.glob("lib/python*/site-packages")
    old = packages / "torch"
    old.mkdir()
    (old / "__init__.py").touch()
    (old / "version.py").write_text("__version__ = '2.9.1+cu128'\n")
    asked = requirements(venv_python(bare), project, isolated)
    assert asked.returncode == 1
    assert asked.stderr == (
        "hookstats needs torch >= 2.10, but this environment has 2.9.1+cu128: "
        "pip install --upgrade torch\n"
    )


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [
        ("/nonexistent", "/nonexistent: No such file or directory"),
        ("false", "false does not compile C++20"),
    ],
)
def test_a_missing_compiler_is_named_in_one_line(
    project: Path, isolated: dict[str, str], compiler: str, problem: str
) -> None:
    message = f"hookstats needs a C++20 compiler: install g++ >= 12 or set CXX ({problem})\n"
    asked = requirements(sys.executable, project, {**isolated, "CXX": compiler})
    assert (asked.returncode, asked.stderr) == (1, message)
    build = run(sys.executable, "setup.py", "-q", "build_ext", cwd=project, CXX=compiler)
    assert build.returncode == 1
    assert build.stderr.endswith(message)
    assert "Traceback" not in build.stderr


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA toolkit, as far as a build looks at it: an nvcc that copies what it is to compile."""
    home = tmp_path / "cuda-1.2"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime_api.h").touch()
    command = home / "bin" / "nvcc"
    command.write_text(
        "#!/bin/sh\n"
        f"echo called >>{home}/calls\n"
        'case "$*" in\n'
        "  --version) echo 'Cuda compilation tools, release 1.2, V1.2.3';;\n"
        f"  --dryrun*) echo '#$ TOP={home}' >&2;;\n"
        "  --list-gpu-arch) printf 'compute_80\\ncompute_86\\ncompute_90\\n';;\n"
        "  *broken*) echo 'broken.cu(1): error: no such thing' >&2; exit 1;;\n"
        '  *) for last; do :; done; echo "$*" >"$last";;\n'
        "esac\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    return home


def test_nvcc_is_found_where_cuda_home_says(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvcc.find_nvcc() == nvcc.Nvcc(str(toolkit / "bin" / "nvcc"), toolkit, "1.2")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert nvcc.find_nvcc() is None
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{toolkit / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found = nvcc.find_nvcc()
    assert found is not None
    assert found.home == toolkit


def test_kernels_are_compiled_again_where_something_changed(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvcc.find_nvcc()
    assert found is not None
    csrc, build = tmp_path / "csrc", tmp_path / "build"
    for name in ("core/a.h", "cuda/one.cu", "cuda/two.cu"):
        (csrc / name).parent.mkdir(parents=True, exist_ok=True)
        (csrc / name).touch()
        os.utime(csrc / name, (1, 1))
    sources = sorted(csrc.glob("cuda/*.cu"))

    def compiled(*flags: str) -> int:
        (toolkit / "calls").write_text("")
        made = nvcc.compile_objects(found, sources, csrc, build, flags)
        assert [file.name for file in made] == ["one.cu.o", "two.cu.o"]
        assert all(file.is_file() for file in made)
        return len((toolkit / "calls").read_text().split()) - 1  # without that for the defaults

    assert [compiled("-O3"), compiled("-O3"), compiled("-O2")] == [2, 0, 2]
    (csrc / "core" / "a.h").touch()
    os.utime(csrc / "core" / "a.h", (2**32, 2**32))
    assert compiled("-O2") == 2
    (csrc / "cuda" / "broken.cu").touch()
    (toolkit / "calls").write_text("")
    monkeypatch.setenv("MAX_JOBS", "1")
    with pytest.raises(RuntimeError, match=r"nvcc failed on broken\.cu: .*no such thing"):
        nvcc.compile_objects(found, [csrc / "cuda" / "broken.cu", *sources], csrc, build, ("-O1",))
    assert len((toolkit / "calls").read_text().split()) == 2  # for the defaults and broken.cu


@pytest.mark.parametrize(
    ("jobs", "targets", "files", "threads"),
    [
        (1, "9.0", 1, 1),
        (2, "9.0", 2, 1),
        (2, "8.0;9.0", 1, 2),
        (4, "8.0;9.0", 2, 2),
        (2, "8.0;9.0;10.0+PTX", 1, 2),
    ],
)
def test_all_jobs_compile_kernels(
    toolkit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: int,
    targets: str,
    files: int,
    threads: int,
) -> None:
    """Each nvcc waits until as many are at work as may be, and leaves once there were."""
    monkeypatch.setenv("MAX_JOBS", str(jobs))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", targets)
    at_work, lock, most = set[str](), Barrier(files, timeout=30), [0]

    def compile_one(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert f"--threads={threads}" in command
        at_work.add(command[-1])
        most[0] = max(most[0], len(at_work))
        lock.wait()
        at_work.discard(command[-1])
        lock.wait()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(nvcc.subprocess, "run", compile_one)
    for name in ("core/a.h", *(f"cuda/{number}.cu" for number in range(4))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    sources = sorted(tmp_path.glob("cuda/*.cu"))
    nvcc.compile_objects(
        nvcc.Nvcc("nvcc", toolkit, "13.0"), sources, tmp_path, tmp_path / "build", ()
    )
    assert most == [files]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CUDA_HOME": "/nonexistent"}, "FORCE_CUDA=1, and no nvcc: install the CUDA toolkit"),
        ({"TORCH_CUDA_ARCH_LIST": "8.0;Hopper"}, "TORCH_CUDA_ARCH_LIST has 'Hopper': expected"),
    ],
)
def test_what_cannot_be_forced_ends_the_build_in_one_line(
    project: Path, toolkit: Path, variables: dict[str, str], message: str
) -> None:
    command = (sys.executable, "setup.py", "-q", "build_ext")
    build = run(*command, cwd=project, **({"FORCE_CUDA": "1"} | variables))
    assert build.returncode == 1
    assert build.stderr.splitlines()[-1].startswith(f"hookstats: {message}")
    assert "Traceback" not in build.stderr


def test_the_sdist_holds_what_a_build_needs(project: Path, isolated: dict[str, str]) -> None:
    code = "import sys; sys.path.insert(0, '_build'); import backend; backend.build_sdist('dist')"
    run(sys.executable, "-c", code, cwd=project, **isolated).check_returncode()
    (archive,) = (project / "dist").glob("hookstats-*.tar.gz")
    with tarfile.open(archive) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = [*PACKED, "hookstats/py.typed", "_build/backend.py", "_build/toolchain.py"]
    wanted += [str(file.relative_to(ROOT)) for file in (ROOT / "csrc").rglob("*.*")]
    assert set(wanted) <= held
    assert not [name for name in held if name.endswith(".so")]


def test_a_wheel_holds_what_the_report_is_made_of(project: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    command = (sys.executable, "setup.py", "-q", "build_py", "--build-lib", built)
    run(*command, cwd=project).check_returncode()
    assets = Path("hookstats", "show", "page", "assets")
    held = {file.name for file in (built / assets).iterdir()}
    assert {"page.html", "page.css", "main.js"} <= held
    assert held == {file.name for file in (ROOT / assets).iterdir()}


@pytest.mark.full
def test_pip_installs_with_no_torch_and_against_an_installed_one(
    project: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path).check_returncode()
    pins = str(ROOT / "constraints.txt")
    pinned = {"PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins, "MAX_JOBS": "2"}
    pinned |= {"PIP_COMPILE": "0"}  # every file of torch, a minute each time
    compiler = unoptimized(tmp_path / "compiler")
    use = (
        "import hookstats as hs, torch\n"
        "stats = hs.channel_stats(torch.arange(6.0).reshape(3, 2), channel_dim=1)\n"
        "print(stats.mean.tolist(), hs.__file__.startswith(" + repr(str(venv)) + "))\n"
    )

    def install() -> str:
        done = run(
            venv_python(venv), "-m", "pip", "install", "-v", ".", cwd=project, **pinned, **compiler
        )
        assert done.returncode == 0, done.stdout + done.stderr
        used = run(venv_python(venv), "-W", "error", "-c", use, cwd=tmp_path)
        assert used.stdout == "[2.0, 3.0] True\n", used.stderr
        return done.stdout + done.stderr  # builds report on the latter

    def torch_installs(log: str) -> int:
        return sum(
            "Successfully installed" in line and " torch-" in line for line in log.splitlines()
        )

    def installed() -> str:
        return run(venv_python(venv), "-m", "pip", "freeze", cwd=tmp_path).stdout

    built = f"hookstats: built the CPU operators with {compiler['CXX']} against torch "
    first = install()
    assert torch_installs(first) == 2  # for the build, then for good
    assert built in first
    assert "hookstats: built the C++ hooks with " in first

    before = installed()
    run(venv_python(venv), "-m", "pip", "uninstall", "-qy", "hookstats", cwd=tmp_path)
    second = install()
    assert torch_installs(second) == 0
    assert built + torch.__version__ in second
    assert installed() == before


def test_what_the_compiler_refused_is_said_in_one_line(project: Path, tmp_path: Path) -> None:
    for source in (project / "csrc").glob("*/*.cpp"):
        source.write_text('#error "out of order"\n')
    no_ninja = tmp_path / "bin" / "ninja"
    no_ninja.parent.mkdir()
    no_ninja.write_text("#!/bin/sh\nexit 1\n")
    no_ninja.chmod(0o755)
    path = f"{no_ninja.parent}{os.pathsep}{os.environ['PATH']}"
    command = (sys.executable, "setup.py", "build_ext")
    build = run(*command, cwd=project, PATH=path)
    assert build.returncode == 1
    assert "hookstats: no ninja: the files are compiled one by one; `pip ins" in build.stdout
    last = build.stderr.splitlines()[-1]
    assert last.startswith("hookstats: CPU operators: not built (csrc/")
    assert '.cpp:1:2: error: #error "out of order"' in last
    assert "Traceback" not in build.stderr


def test_the_compiler_that_was_asked_links_too(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own is the one that Python was built with, which need not be there."""
    for source in (project / "csrc").glob("*/*.cpp"):
        source.write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("c++", "sh", "ninja", "as", "ld"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    monkeypatch.delenv("CXX", raising=False)
    build = run(sys.executable, "setup.py", "build_ext", cwd=project, PATH=str(tools))
    assert build.returncode == 0, build.stderr
    assert "hookstats: built the CPU operators with c++ " in build.stdout


@pytest.mark.full
def test_where_the_hooks_do_not_compile_the_python_hooks_serve(
    project: Path, tmp_path: Path
) -> None:
    for source in (project / "csrc" / "hooks").glob("*.cpp"):
        source.write_text('#error "torch has changed"\n')
    # What a build before left would be packed and loaded: these are removed.
    stale = [
        folder / f"_hooks{sysconfig.get_config_var('EXT_SUFFIX')}"
        for folder in (project / "hookstats", tmp_path / "built" / "hookstats")
    ]
    for file in stale:
        file.parent.mkdir(exist_ok=True, parents=True)
        file.touch()
    command = (sys.executable, "setup.py", "build_ext", "--inplace")
    command += ("--build-lib", str(tmp_path / "built"))
    compiler = unoptimized(tmp_path / "compiler")
    build = run(*command, cwd=project, HOOKSTATS_WERROR="0", **compiler)
    assert build.returncode == 0, build.stdout + build.stderr
    assert "hookstats: built the CPU operators with " in build.stdout
    assert "hookstats: C++ hooks: not built, the Python hooks will serve (" in build.stdout
    assert 'error: #error "torch has changed")' in build.stdout
    assert not [file for file in stale if file.exists()]
    use = (
        "import sys\n"  # an editable install would find what is missing here
        "editable = lambda finder: '__editable__' in getattr(finder, '__module__', '')\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if not editable(finder)]\n"
        "import hookstats as hs\n"
        "from hookstats.kernels import native\n"
        "print(native.hooks, hs.__file__)\n"
    )
    used = run(sys.executable, "-c", use, cwd=project)
    assert used.stdout == f"None {project / 'hookstats' / '__init__.py'}\n", used.stderr
    assert "RuntimeWarning: hookstats: no C++ hooks" in used.stderr
    assert "make clean build" in used.stderr
    strict = run(*command, cwd=project, HOOKSTATS_WERROR="1", **compiler)
    assert strict.returncode != 0
