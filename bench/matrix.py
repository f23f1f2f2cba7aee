"""Every torch that hookstats serves, each in an environment of its own: built, asked, tested.

`make matrix` runs this for all of `VERSIONS`, `make matrix TORCH=2.15.0` for one. A version is
installed, hookstats is built against it from a copy of the sources, `hookstats doctor` and the
tests run, and docs/compatibility.md gets the version's row; rows of versions that did not run stay.
What a version takes on the disk, up to 8 GB, is removed when its row is written, unless `--keep`
names the folder where environments stay and are used again.
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
PAGE = ROOT / "docs" / "compatibility.md"
VERSIONS = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
BEGIN, END = "<!-- the table of make matrix -->\n", "<!-- end of the table -->\n"
COLUMNS = ("torch", "Python", "operators", "C++ hooks", "CUDA kernels", "doctor", "tests", "on")


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
    which = f" of {', '.join(tests)}" if tests else ""
    return (", ".join(counts) or "not run") + which


def with_row(page: str, row: Row) -> str:
    """`page` with the row in its table, instead of an earlier one of the same release of torch."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = [
        line for line in table.splitlines(keepends=True)[2:] if release(line) != release(row[0])
    ]
    lines = sorted([*lines, row.line()], key=release)
    header = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    return f"{before}{BEGIN}{header}{''.join(lines)}{END}{after}"


def release(text: str) -> tuple[int, ...]:
    """The first version in a text, such as a row's, without what names the build."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def run(*command: str | Path, cwd: Path, log: Path, check: bool = True) -> str:
    """The output of a command, both streams, which is added to a log."""
    # Nothing of the environment that runs this is to be found by the other one.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{clean['PATH']}"
    done = subprocess.run(
        command, cwd=cwd, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = f"$ {shlex.join(map(str, command))}\n{done.stdout}"
    with log.open("a") as file:
        file.write(said)
    if check and done.returncode != 0:
        raise Failure(f"{shlex.join(map(str, command))}: exit code {done.returncode}; see {log}")
    return done.stdout if done.returncode == 0 or not check else said


def copy_sources(tree: Path) -> None:
    """Bring a copy of the sources up to date: what git knows and what it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def try_version(version: str, room: Path, tests: Sequence[str], jobs: int) -> Row:
    """Install, build, ask and test one version in the folder `room`."""
    tree, python, log = room / "tree", room / "venv" / "bin" / "python", room / "log.txt"
    room.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    copy_sources(tree)
    if not python.is_file():
        run(Path(sys.executable), "-m", "venv", room / "venv", cwd=room, log=log)
    pins = room / "pins.txt"
    constraints = re.sub(
        r"(?m)^(torch|setuptools)==.*\n", "", (ROOT / "constraints.txt").read_text()
    )
    pins.write_text(f"{constraints}\ntorch=={version}\n")
    pip = (
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--no-cache-dir",
        "-c",
        pins,
    )
    run(*pip, f"torch=={version}", "setuptools>=77", "ninja", cwd=tree, log=log)
    install = run(*pip, "-v", "--no-build-isolation", "--editable", ".[test]", cwd=tree, log=log)
    names = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
    torch_version, python_version = run(python, "-c", names, cwd=tree, log=log).split()[-2:]
    doctor = run(python, "-m", "hookstats", "doctor", cwd=tree, log=log, check=False)
    broken = re.findall(r"^(.*?) +BROKEN: ", doctor, re.MULTILINE)
    workers = ("-n", str(jobs), "--dist", "worksteal")
    said = run(python, "-m", "pytest", "-q", *workers, *tests, cwd=tree, log=log, check=False)
    today = datetime.date.today().isoformat()
    state = f"broken: {', '.join(broken)}" if broken else "ok"
    return Row(torch_version, python_version, *built(install), state, tested(said, tests), today)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the versions one after the other; the exit code says whether all could be tried."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", nargs="*", help="the versions; default: all")
    parser.add_argument("--tests", nargs="*", default=[], help="what pytest runs; default: all")
    parser.add_argument("--keep", type=Path, help="the folder where environments stay")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pytest's workers")
    given = parser.parse_args(arguments)
    failed = False
    for version in given.torch or VERSIONS:
        with tempfile.TemporaryDirectory(prefix="hookstats-") as folder:
            room = (given.keep or Path(folder)).resolve() / version
            try:
                row = try_version(version, room, given.tests, given.jobs)
            except Failure as failure:
                print(f"matrix: torch {version}: {failure}", flush=True)
                failed = True
                continue
            PAGE.write_text(with_row(PAGE.read_text(), row))
            print(row.line(), end="", flush=True)
    print(table_of(PAGE.read_text()), end="")
    return int(failed)


def table_of(page: str) -> str:
    """The table of a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    sys.exit(main())
