"""Applies each mutant to a copy of the tree, and runs its test: `make mutants`.

With words as arguments: only the mutants whose bug has one of them.

First the tests must pass without mutants; then, with its mutant, each must fail. Prints the table
of docs/reliability.md. The exit code is the number of mutants that were not caught.

Tests run in forks of this process, which has loaded torch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pyarrow.parquet  # noqa: F401, loaded once for all forks, as torch is
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))

from mutants.mutant import Mutant  # noqa: E402
from mutants.table import MUTANTS  # noqa: E402
from support import builds  # noqa: E402

COPIED = (
    *("hookstats", "csrc", "tests", "pyproject.toml", "docs", "README.md", "Makefile"),
    *("setup.py", "_build"),
)
SECONDS = 300
"""What runs longer is caught, too: a mutant may wait for ever."""

PROGRAMS = {
    "tests/cpp/test_copy.cpp": (),
    "tests/cpp/test_core.cpp": (),
    "tests/cpp/test_take.cpp": ("csrc/cpu/take.cpp",),
    "tests/cpp/test_wholes.cpp": ("csrc/cpu/wholes.cpp",),
}
"""The sources beside its own that a C++ test needs."""


def run_program(tree: Path, test: str) -> tuple[str, str]:
    """What becomes of a C++ test in a tree, "passed", "failed" or "did not end", and its output."""
    program = tree / "program"
    compiler = os.environ.get("CXX", "c++").split()
    flags = ["-std=c++20", "-O1", "-pthread", "-Icsrc", "-Itests/cpp", "-o", str(program)]
    subprocess.run([*compiler, *flags, test, *PROGRAMS[test]], cwd=tree, check=True)
    try:
        done = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "did not end", ""
    return "failed" if done.returncode else "passed", done.stdout + done.stderr


def run_tests(tree: Path, tests: Iterable[str]) -> tuple[str, str]:
    """What becomes of tests in a tree, as of a C++ test."""
    log = tree / "log"
    tests = list(tests)
    child = os.fork()
    if not child:
        code = 99  # of an error that is not pytest's
        try:
            code = _test(tree, log, tests)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + SECONDS * len(set(tests))
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "did not end", log.read_text()
        time.sleep(0.05)
    code = os.waitstatus_to_exitcode(ended[1])
    if code not in (0, 1):  # an error of pytest, no failure
        return f"exit code {code}", log.read_text()
    return "failed" if code else "passed", log.read_text()


def _test(tree: Path, log: Path, tests: Iterable[str]) -> int:
    """Run tests in this process, which is a child for them alone; the exit code of pytest."""
    os.setsid()
    with log.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    sys.stdout.flush()
    return code


def run(tree: Path, test: str) -> tuple[str, str]:
    return run_program(tree, test) if test in PROGRAMS else run_tests(tree, test.split())


def is_built(mutant: Mutant) -> bool:
    """Whether a mutant is in a library that its test loads."""
    return mutant.file.startswith("csrc/") and mutant.test not in PROGRAMS


def build(tree: Path) -> None:
    """Compile the libraries of a tree; what did not change since the last time stays."""
    command = (sys.executable, "setup.py", "build_ext", "--inplace")
    done = builds.run(*command, cwd=tree, **builds.unoptimized(tree / "compiler"))
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def run_mutant(tree: Path, mutant: Mutant) -> str:
    """What becomes of a mutant's test; the tree is as before then."""
    whole = (tree / mutant.file).read_text()
    libraries = {path: path.read_bytes() for path in (tree / "hookstats").glob("*.so")}
    apply(tree, mutant)
    if is_built(mutant):
        build(tree)
    outcome, _ = run(tree, mutant.test)
    (tree / mutant.file).write_text(whole)
    for path, content in libraries.items() if is_built(mutant) else ():
        path.write_bytes(content)
    return outcome


def run_without(tree: Path, tests: set[str]) -> None:
    """All tests, without mutants: those of pytest with equal options together."""
    for test in sorted(tests & PROGRAMS.keys()):
        require_passed(test, *run(tree, test))

    def options(test: str) -> list[str]:
        return [word for word in test.split() if not word.startswith("tests/")]

    for words, group in groupby(sorted(tests - PROGRAMS.keys(), key=options), options):
        names = [word for test in group for word in test.split() if word not in words]
        require_passed(" ".join(names), *run_tests(tree, [*names, *words]))


def require_passed(what: str, outcome: str, output: str) -> None:
    if outcome != "passed":
        print(output)
        raise SystemExit(f"{what}: {outcome} without any mutant")


def apply(tree: Path, mutant: Mutant) -> None:
    path = tree / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise SystemExit(
            f"{mutant.file}: {mutant.before!r} occurs {text.count(mutant.before)} times"
        )
    path.write_text(text.replace(mutant.before, mutant.after))


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.bug for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name)
            else:
                shutil.copy(source, tree / name)
        if any(map(is_built, chosen)):
            build(tree)
        run_without(tree, {mutant.test for mutant in chosen})
        print("| bug | in | caught by | seconds |\n|---|---|---|---|")
        for mutant in chosen:
            began = time.monotonic()
            outcome = run_mutant(tree, mutant)
            caught = outcome in ("failed", "did not end")
            missed += not caught
            tests = [word for word in mutant.test.split() if word.startswith("tests/")]
            by = " ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
            seconds = f"{time.monotonic() - began:.0f}"
            name = mutant.file.removeprefix("hookstats/")
            by = f"{by}, which did not end" if outcome == "did not end" else by
            print(f"| {mutant.bug} | `{name}` | {by if caught else '**NOT CAUGHT**'} | {seconds} |")
            sys.stdout.flush()
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
