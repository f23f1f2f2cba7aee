"""python -m bench.cuda.tune: tunes the numbers of csrc/cuda/policy.h on the GPU that is here.

Writes tune.csv, every point that was measured, tune-micro.csv, what bounds the kernels, and in the
end tuned.h, which takes the place of csrc/cuda/tuned.h. Where the time ends first, another run with
the same folder goes on. `--build` compiles the programs and no more, for which no GPU is needed.
The exit code is 0 where there is a header, 2 where time ran out, and 1 if the kernels are wrong or
do not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from bench.cuda.tune.bounds import bounds
from bench.cuda.tune.cases import cases
from bench.cuda.tune.ledger import Ledger, Machine
from bench.cuda.tune.policy import ROOT, TUNED, Plan, codes, header, read
from bench.cuda.tune.programs import CrashedError, Programs
from bench.cuda.tune.search import OUT_OF_TIME, BrokenError, Found, OutOfTimeError, Search
from bench.cuda.tune.variants import Builder, sources, worth_measuring

PROGRAMS = ROOT / "build" / "tune"


def said_by(*command: str) -> str:
    """The first line that a command says; "unknown" if there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"


def provenance(found: Found, machine: Machine, commit: str, points: int) -> list[str]:
    """Where the numbers of a header are from."""
    mean, (worst, where) = found.compared.mean, found.compared.worst
    day = datetime.now(timezone.utc).date().isoformat()
    on = f"{machine.device}, driver {machine.driver}, {day}, commit {commit}, {points} points"
    if not found.is_taken:
        why = found.compared.refused or "nothing was faster"
        return [f"Measured on {on}: the numbers before it stay, as {why}."]
    return [
        f"Measured on {on}: {mean:.3f} of the time of the numbers before it, on the geometric mean "
        f"of {len(found.compared.ratios)} cases, at most {worst:.3f} ({where})."
    ]


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda.tune", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument("--capability", required=True, help="of the GPU, such as 9.0")
    parser.add_argument("--seconds", type=float, default=400.0, help="begin no point after that")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument(
        "--build", choices=("all", "own"), help="own: for the numbers that the build has, alone"
    )
    return parser.parse_args(given)


def tune(options: argparse.Namespace, builder: Builder, programs: Programs, end: float) -> int:
    """Measures until there is a header, or no time."""
    default = read()
    hello = programs.hello(default.code)
    if hello["capability"] != options.capability:
        raise SystemExit(
            f"bench.cuda.tune: --capability {options.capability}: expected {hello['capability']}, "
            f"which {hello['device']} has"
        )
    if missing := set(Plan._fields) - set(hello):
        raise SystemExit(f"bench.cuda.tune: the programs know no {', '.join(sorted(missing))}")
    driver = said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    commit = said_by("git", "rev-parse", "--short=12", "HEAD")
    machine = Machine(hello["device"], hello["capability"], driver, sources())
    ledger = Ledger(options.out / "tune.csv", machine, commit)
    known = len(ledger)
    left = end - time.monotonic()
    said = bounds(builder.program("micro"), options.out / "tune-micro.csv", machine, left)
    for line in said:
        print(f"bench.cuda.tune: {line}")
    search = Search(
        programs, ledger, default, cases(), programs.codes, lambda: end - time.monotonic()
    )
    code = 0
    try:
        found = search.run()
    except OutOfTimeError:
        new = len(ledger) - known
        last, code = f"{new} new points, {len(ledger)} in all: another call goes on", OUT_OF_TIME
    except BrokenError as error:
        last, code = f"the kernels are broken as they are: {error}", 1
    else:
        from_where = provenance(found, machine, commit, len(ledger))
        path = options.out / TUNED.name
        path.write_text(header(found.policy, from_where))
        last = f"{from_where[0]} {path} takes the place of {TUNED.relative_to(ROOT)}"
    for line in (*search.notes, last):
        print(f"bench.cuda.tune: {line}")
    return code


def main(given: Sequence[str] | None = None) -> int:
    """Build what is missing, and tune."""
    options = arguments(given)
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    builder = Builder(options.programs, options.capability, options.jobs)
    wanted = list(dict.fromkeys([read().code, *(codes() if options.build != "own" else ())]))
    try:
        builder.build(wanted)
    except RuntimeError as error:
        raise SystemExit(f"bench.cuda.tune: {error}") from None
    if options.build is not None:
        print(f"bench.cuda.tune: {len(wanted)} programs in {builder.folder}")
        return 0
    variants = worth_measuring(builder.variants(wanted), read().code)
    try:
        with closing(Programs(variants, options.out / "tune-programs.log")) as programs:
            return tune(options, builder, programs, end)
    except CrashedError as error:
        raise SystemExit(f"bench.cuda.tune: {error}") from None


if __name__ == "__main__":
    raise SystemExit(main())
