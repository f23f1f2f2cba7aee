"""python -m bench.cuda: measures the CUDA kernels, and writes a JSON file and its text.

Run by `make gpu-check`. Exit code: 0 whatever the figures are, as long as all results were right.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.cuda.sections import SECTIONS, Scale, Section, free
from bench.machine import device_facts
from bench.measured import Results
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
        "--seconds", type=float, default=float("inf"), help="begin no section after that many"
    )
    parser.add_argument("--note", action="append", default=[], help="what the result is to say")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, sections: Sequence[Section] = SECTIONS) -> int:
    """Measure, print and write."""
    options = arguments(given, [section.__name__ for section in sections])
    device: torch.device = options.device
    if device.type != "cuda" and not options.smoke:
        raise SystemExit(f"--device {device}: expected cuda, or --smoke, which measures nothing")
    scale = Scale(device)
    results = Results(device_facts(device), notes=options.note)
    path = options.out / "gpu-check.json"
    if options.smoke:
        results.notes.append("a smoke run: tiny tensors, and no figure here is a measurement")
        scale = Scale(device, 1 << 18, 2, 2, False, 20, 1 << 16, 128, 64, 10)
    if device.type == "cuda":
        torch.cuda._sleep(1_000_000_000)  # half a second, in which the clocks rise
    start = time.perf_counter()
    failed = False
    for section in sections:
        if section.__name__ not in options.sections:
            continue
        began = time.perf_counter()
        if began - start > options.seconds:
            results.notes.append(f"{section.__name__}: not measured, time ran out")
            continue
        try:
            results.cases.extend(section(scale))  # those before an error stay
        except Exception as error:
            failed = True
            results.notes.append(f"{section.__name__}: FAILED: {type(error).__name__}: {error}")
            traceback.print_exc()
        free(device)
        print(f"bench.cuda: {section.__name__}: {time.perf_counter() - began:.0f} s", flush=True)
        # After each, so that one that fails or is killed takes no other along.
        write(results, path)
    write(results, path)
    print(text(results))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
