"""Applies each mutant to a copy of the tree, and runs its test: `make mutants`.

With words as arguments: only the mutants whose bug has one of them.

First each test must pass without its mutant; then, with the mutant, it must fail. Prints the table
of docs/reliability.md. The exit code is the number of mutants that were not caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("hookstats", "csrc", "tests", "pyproject.toml", "docs", "README.md", "Makefile")
SECONDS = 300
"""What runs longer is caught, too: a mutant may wait for ever."""

PROGRAMS = {
    "tests/cpp/test_core.cpp": (),
    "tests/cpp/test_take.cpp": ("csrc/cpu/take.cpp",),
}
"""The sources beside its own that a C++ test needs."""


def run(tree: Path, test: str) -> tuple[str, str]:
    """What becomes of a test in a tree, "passed", "failed" or "did not end", and its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *test.split()]
    try:
        if test in PROGRAMS:
            program = tree / "program"
            compiler = os.environ.get("CXX", "c++").split()
            flags = ["-std=c++20", "-O1", "-pthread", "-Icsrc", "-Itests/cpp", "-o", str(program)]
            sources = [test, *PROGRAMS[test]]
            subprocess.run([*compiler, *flags, *sources], cwd=tree, check=True)
            command = [str(program)]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "did not end", ""
    if test not in PROGRAMS and done.returncode not in (0, 1):  # an error of pytest, no failure
        return f"exit code {done.returncode}", done.stdout + done.stderr
    return "failed" if done.returncode else "passed", done.stdout + done.stderr


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
        for test in dict.fromkeys(mutant.test for mutant in chosen):
            outcome, output = run(tree, test)
            if outcome != "passed":
                print(output)
                raise SystemExit(f"{test}: {outcome} without any mutant")
        print("| bug | in | caught by | seconds |\n|---|---|---|---|")
        for mutant in chosen:
            whole = (tree / mutant.file).read_text()
            apply(tree, mutant)
            began = time.monotonic()
            outcome, _ = run(tree, mutant.test)
            (tree / mutant.file).write_text(whole)
            caught = outcome in ("failed", "did not end")
            missed += not caught
            by = " ".join(f"`{test.removeprefix('tests/')}`" for test in mutant.test.split())
            seconds = f"{time.monotonic() - began:.0f}"
            name = mutant.file.removeprefix("hookstats/")
            print(f"| {mutant.bug} | `{name}` | {by if caught else '**NOT CAUGHT**'} | {seconds} |")
            sys.stdout.flush()
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
