"""python -m bench.cuda: measures the CUDA kernels, and writes one JSON file and one table.

Run by `make gpu-check`. Exit code: 0 whatever the figures are, as long as all results were right.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.cuda.results import Row, as_json, as_table
from bench.cuda.sections import SECTIONS, Scale, free
from bench.machine import device_facts


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="tiny tensors, on any device: shows that it runs, and measures nothing",
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=[section.__name__ for section in SECTIONS],
        default=[section.__name__ for section in SECTIONS],
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no section after that many"
    )
    parser.add_argument("--note", action="append", default=[], help="what the result is to say")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = arguments(given)
    device: torch.device = options.device
    if device.type != "cuda" and not options.smoke:
        raise SystemExit(f"--device {device}: expected cuda, or --smoke, which measures nothing")
    scale = Scale(device)
    notes = list(options.note)
    if options.smoke:
        notes.append("a smoke run: tiny tensors, and no figure here is a measurement")
        scale = Scale(device, 1 << 18, 2, 2, False, 20, 1 << 16, 128, 64, 10)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    facts = device_facts(device)
    if device.type == "cuda":
        torch.cuda._sleep(1_000_000_000)  # half a second, in which the clocks rise
    start = time.perf_counter()
    failed = False
    for section in SECTIONS:
        if section.__name__ not in options.sections:
            continue
        began = time.perf_counter()
        if began - start > options.seconds:
            notes.append(f"{section.__name__}: not measured, time ran out")
            continue
        try:
            rows.extend(section(scale))  # those before an error stay
        except Exception as error:
            failed = True
            notes.append(f"{section.__name__}: FAILED: {type(error).__name__}: {error}")
            traceback.print_exc()
        free(device)
        print(f"bench.cuda: {section.__name__}: {time.perf_counter() - began:.0f} s", flush=True)
        # After each, so that one that fails or is killed takes no other along.
        write(options.out, facts, rows, notes)
    write(options.out, facts, rows, notes)
    print((options.out / "gpu-check.md").read_text())
    return int(failed)


def write(out: Path, facts: dict[str, Any], rows: list[Row], notes: list[str]) -> None:
    """The JSON file and the table, of what there is so far."""
    report = json.dumps(as_json(facts, rows, notes), indent=1)
    (out / "gpu-check.json").write_text(report + "\n")
    (out / "gpu-check.md").write_text(as_table(facts, rows, notes))


if __name__ == "__main__":
    raise SystemExit(main())
