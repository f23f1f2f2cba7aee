"""python -m bench.cuda: measures the CUDA kernels, and writes a JSON file and its text.

Run by `make gpu-check`. Exit code: 0 whatever the figures are, as long as all results were right.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.cuda.cases import Scale
from bench.cuda.sections import SECTIONS, Section, free
from bench.cuda.tables import SMOKE
from bench.machine import device_facts
from bench.measured import Case, Results
from bench.report import text, write


def arguments(given: Sequence[str] | None, sections: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="tiny tensors, on any device: shows that it runs, and measures nothing",
    )
    parser.add_argument("--sections", nargs="+", choices=sections, default=sections)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no case after that many"
    )
    parser.add_argument("--note", action="append", default=[], help="what the result is to say")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what an earlier run here has measured"
    )
    return parser.parse_args(given)


def earlier(path: Path, machine: dict[str, Any]) -> Results | None:
    """What was measured on this machine, by this code, today; None if nothing was."""
    if not path.is_file():
        return None
    results = Results.load(path)
    return results if results.machine == machine else None


def _in_time(cases: Iterator[Case], end: float) -> Iterator[Case]:
    """The cases that are begun before `end`.

    Raises:
        TimeoutError: there may be more.
    """
    while time.perf_counter() < end:
        case = next(cases, None)
        if case is None:
            return
        yield case
    raise TimeoutError


def main(given: Sequence[str] | None = None, sections: Sequence[Section] = SECTIONS) -> int:
    """Measure, print and write."""
    options = arguments(given, [section.__name__ for section in sections])
    device: torch.device = options.device
    if device.type != "cuda" and not options.smoke:
        raise SystemExit(f"--device {device}: expected cuda, or --smoke, which measures nothing")
    scale = Scale(device)
    path = options.out / "gpu-check.json"
    machine = device_facts(device)
    results = (earlier(path, machine) if options.resume else None) or Results(machine)
    notes = list(options.note)
    if options.smoke:
        notes.append(SMOKE)
        scale = Scale(device, 1 << 18, 2, 2, False, 20, 1 << 16, 128, 64, 10)
    results.notes += [note for note in notes if note not in results.notes]
    if device.type == "cuda":
        torch.cuda._sleep(1_000_000_000)  # half a second, in which the clocks rise
    end = time.perf_counter() + options.seconds
    failed = False
    for section in sections:
        name = section.__name__
        done = f"{name}: measured"
        if name not in options.sections or done in results.notes:
            continue
        results.notes = [note for note in results.notes if not note.startswith(f"{name}: ")]
        began = time.perf_counter()
        fresh = Results(machine)
        try:
            for case in _in_time(section(scale), end):
                fresh.cases.append(case)
                print(f"bench.cuda: {name}: {case.name}", flush=True)
                # After each, so that one that fails or is killed takes no other along.
                write(results.merge(fresh), path)
            fresh.notes.append(done)
        except TimeoutError:
            fresh.notes.append(f"{name}: {len(fresh.cases)} cases measured, time ran out")
        except Exception as error:
            failed = True
            fresh.notes.append(f"{name}: FAILED: {type(error).__name__}: {error}")
            traceback.print_exc()
        results = results.merge(fresh)
        free(device)
        print(f"bench.cuda: {name}: {time.perf_counter() - began:.0f} s", flush=True)
    write(results, path)
    print(text(results))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
