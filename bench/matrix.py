"""Every torch that hookstats serves, each in an environment of its own: built, asked, tested.

`make matrix` runs this for all of `VERSIONS`, `make matrix TORCH=2.15.0` for one. A version is
installed, hookstats is built against it from a copy of the sources, `hookstats doctor` and the
tests run, and the version's row for the table of docs/compatibility.md is printed.
`--python` names the Python of the environments, by default the one that runs this. What a
version takes on the disk, up to 8 GB, is removed when its row is printed, unless `--keep` names the
folder where environments stay and are used again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
VERSIONS = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
COLUMNS = (
    "torch",
    "Python",
    "operators",
    "C++ hooks",
    "CUDA kernels",
    "doctor",
    "tests",
    "on",
)


class Failure(Exception):
    """A command failed; the message says which one, and where its output is."""


class Row(NamedTuple):
    """What became of one version, in the order of COLUMNS."""

    torch: str
    python: str
    operators: str
    hooks: str
    cuda: str
    doctor: str
    tests: str
    on: str

    def line(self) -> str:
        return f"| {' | '.join(self)} |\n"


def built(log: str) -> tuple[str, str, str]:
    """What a build's log says of the operators, the C++ hooks and the CUDA kernels."""

    def found(part: str) -> str:
        if re.search(rf"^\s*hookstats: built the {re.escape(part)} ", log, re.MULTILINE):
            return "built"
        why = re.search(
            rf"^\s*hookstats: {re.escape(part)}: not built.*?\((.*)\)", log, re.MULTILINE
        )
        return "no: " + why[1].partition(";")[0] if why else "not built"

    return found("CPU operators"), found("C++ hooks"), found("CUDA kernels")


def tested(log: str, tests: Sequence[str]) -> str:
    """The counts in pytest's last line, and which tests ran, if not all."""
    counts = re.findall(r"\d+ (?:failed|passed|errors?)", log.strip().rpartition("\n")[2])
    return (", ".join(counts) or "not run") + (f" of {', '.join(tests)}" if tests else "")


def run(*command: str | Path, cwd: Path, log: Path, check: bool = True, **environment: str) -> str:
    """The output of a command, both streams, which is added to a log."""
    # Nothing of the environment that runs this is to be found by the other one.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{clean['PATH']}"
    clean |= {"PYTHONUNBUFFERED": "1", **environment}
    with log.open("a+") as file:  # as it comes, for whoever waits
        file.write(f"$ {shlex.join(map(str, command))}\n")
        file.flush()
        begin = file.tell()
        done = subprocess.run(command, cwd=cwd, env=clean, stdout=file, stderr=subprocess.STDOUT)
        file.seek(begin)
        said = file.read()
    if check and done.returncode != 0:
        raise Failure(f"{shlex.join(map(str, command))}: exit code {done.returncode}; see {log}")
    return said


def lay_sources(tree: Path) -> None:
    """A fresh copy of the sources: what git knows and what it does not ignore.

    What an earlier build left in `build` stays: nvcc's objects serve every torch.
    """
    tree.mkdir(parents=True, exist_ok=True)
    for entry in tree.iterdir():
        if entry.is_dir() and entry.name != "build":
            shutil.rmtree(entry)
        elif entry.is_file():
            entry.unlink()
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


class Trial:
    """One version: its folder, with an environment and a log, beside the copy of the sources.

    base: the Python that the environment is made of.
    """

    def __init__(self, version: str, room: Path, base: str, jobs: int) -> None:
        minor = "import sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([base, "-c", minor], capture_output=True, text=True, check=True)
        self.room = room / version
        self._version = version
        self._tree = room / "tree"
        self._base = Path(base)
        self._environment = self.room / f"python{asked.stdout.strip()}"
        self._python = self._environment / "bin" / "python"
        self.log = self.room / "log.txt"
        self._workers = ("-n", str(jobs), "--dist", "worksteal")
        self.room.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)

    def row(self, tests: Sequence[str]) -> Row:
        """Install, build, ask and test."""
        lay_sources(self._tree)
        install = self._install()
        names = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
        torch_version, python_version = self._ask("-c", names).split()[-2:]
        doctor = self._ask("-m", "hookstats", "doctor", check=False)
        broken = re.findall(r"^(.*?) +BROKEN: ", doctor, re.MULTILINE)
        state = f"broken: {', '.join(broken)}" if broken else "ok"
        said = self._ask("-m", "pytest", "-q", *self._workers, *tests, check=False)
        today = datetime.date.today().isoformat()
        parts = built(install)
        counts = tested(said, tests)
        return Row(torch_version, python_version, *parts, state, counts, today)

    def _install(self) -> str:
        """A build's log."""
        if not self._python.is_file():
            run(self._base, "-m", "venv", self._environment, cwd=self.room, log=self.log)
        pins = self.room / "pins.txt"
        listed = (ROOT / "constraints.txt").read_text()
        others = re.sub(r"(?m)^(torch|setuptools)==.*\n", "", listed)
        pins.write_text(f"{others}\ntorch=={self._version}\n")
        pip = ("-m", "pip", "--disable-pip-version-check", "install", "--no-cache-dir", "-c", pins)
        self._ask(*pip, f"torch=={self._version}", "setuptools>=77", "ninja")
        return self._ask(*pip, "-v", "--no-build-isolation", "--editable", ".[test]")

    def _ask(self, *arguments: str | Path, check: bool = True, **environment: str) -> str:
        """The output of this version's Python, which is added to the log."""
        command = (self._python, *arguments)
        return run(*command, cwd=self._tree, log=self.log, check=check, **environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the versions one after the other; the exit code says whether all could be tried."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", nargs="*", help="the versions; default: all")
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest runs; default: all")
    parser.add_argument("--python", default=sys.executable, help="the environments' Python")
    parser.add_argument("--keep", type=Path, help="the folder where environments stay")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pytest's workers")
    given = parser.parse_args(arguments)
    base = shutil.which(given.python)
    if base is None:
        parser.error(f"--python is {given.python!r}: expected a Python that runs here")
    failed, rows = False, []
    with tempfile.TemporaryDirectory(prefix="hookstats-") as folder:
        room = (given.keep or Path(folder)).resolve()
        for version in given.torch or VERSIONS:
            trial = Trial(version, room, base, given.jobs)
            print(f"matrix: torch {version}: see {trial.log}", flush=True)
            try:
                row = trial.row(given.tests)
            except Failure as failure:
                print(f"matrix: torch {version}: {failure}", flush=True)
                failed = True
            else:
                rows.append(row.line())
                print(rows[-1], end="", flush=True)
            if given.keep is None:
                shutil.rmtree(trial.room)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n{''.join(rows)}", end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
