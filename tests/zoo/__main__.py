"""Runs programs of the zoo with and without `hookstats run`, and prints what was seen of each.

    PYTHONPATH=tests python -m zoo [NAME ...]

Each program runs in two forks of this process. Its stdout, which ends with a digest of parameters
and random states, and its exit code are to be equal; the coverage is to add up, and no rule is to
say more than a note. The exit code is 1 if any of this is not so.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from hookstats.cli import main as hookstats
from hookstats.runs.run import Run, open_run

SCRIPT = Path(__file__).with_name("programs.py")
HEADER = "| program | stdout, bits, exit code | steps | tensors | losses | alerts |"


def names() -> list[str]:
    """All programs, in order."""
    return [*runpy.run_path(str(SCRIPT))["PROGRAMS"]]


def row(name: str, folder: Path) -> tuple[str, bool]:
    """The row of a program in the table, and whether all is well."""
    plain = _run(["python", str(SCRIPT), name], folder / "plain")
    watched = _run(["run", "-o", "run", str(SCRIPT), name], folder / "watched")
    runs = [open_run(path) for path in sorted((folder / "watched").glob("run*"))]
    wrong = [fault for run in runs for fault in _faults(run)]
    if plain != watched or plain[0] != 0:
        wrong.append("another result")
        print(name, plain, watched, (folder / "watched" / "stderr").read_text(), file=sys.stderr)
    losses = sum(len(run.scalars["loss"].values) for run in runs if "loss" in run.scalars)
    seen = (
        " + ".join(str(len(run.steps)) for run in runs) or "none",
        sum(len(run.coverage["rows"]) for run in runs if run.coverage is not None),
        losses or "-",
        "; ".join(wrong) or "none",
    )
    equal = "equal" if plain == watched else "**differ**"
    return f"| {name} | {equal} | {' | '.join(map(str, seen))} |", bool(runs) and not wrong


def _faults(run: Run) -> list[str]:
    """What is wrong with a run of a sound program."""
    found = [f"{one.cause.rule}: {one}" for one in run.incidents if one.severity != "note"]
    if run.coverage is None:
        return [*found, "no coverage"]
    for site in run.coverage["rows"]:
        counted = site["observed"] + site["missing"] + sum(site["skipped"].values())
        if counted != site["forwards"] or site["error"]:
            found.append(f"coverage of {site['name']} {site['kind']}: {site}")
    return [*found, *run.coverage["failures"].values()]


def _run(words: list[str], folder: Path) -> tuple[int, str]:
    """The exit code and stdout of `python SCRIPT NAME`, or of `hookstats run ...`, in a fork."""
    folder.mkdir(parents=True)
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        os._exit(_in_fork(words, folder))
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, (folder / "stdout").read_text()


def _in_fork(words: list[str], folder: Path) -> int:
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        name = "stdout" if stream is sys.stdout else "stderr"
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), stream.fileno())
    code: Any = 0
    try:
        if words[0] == "python":
            sys.argv = words[1:]
            runpy.run_path(words[1], run_name="__main__")
        else:
            code = hookstats(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(HEADER, "|---" * 6 + "|", sep="\n")
    all_well = True
    with tempfile.TemporaryDirectory() as place:
        for name in sys.argv[1:] or names():
            line, is_well = row(name, Path(place, name))
            print(line, flush=True)
            all_well &= is_well
    sys.exit(not all_well)
