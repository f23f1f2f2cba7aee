"""python -m bench.cuda: measures the CUDA kernels, and writes a JSON file and its tables.

Run by `make gpu-check`, where pytest-benchmark may not be; the file has its form. Exit code: 0
whatever the figures are, as long as all results were right.
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

from bench.cuda.cases import Scale
from bench.cuda.sections import PARTS, Section, free
from bench.machine import device_facts
from bench.tables import Entry, lines, save

SMOKE = "a smoke run: tiny tensors, and no figure here is a measurement"


class Results:
    """What was measured, of each section whether it is complete, and the file of both."""

    def __init__(self, path: Path, machine: dict[str, Any], *, resume: bool) -> None:
        """resume: keep what an earlier run measured on this machine, by this code, today."""
        self.path = path
        self.machine = machine
        self.notes: dict[str, str] = {}
        self.entries: list[Entry] = []
        if resume and path.is_file():
            found = json.loads(path.read_text())
            if found["machine_info"] == machine:
                self.notes, self.entries = found["notes"], found["benchmarks"]

    def write(self) -> str:
        """Write the JSON, and beside it the tables, which are returned."""
        save(self.path, {"machine_info": self.machine, "notes": self.notes}, self.entries)
        notes = (f"- {name}: {note}" for name, note in self.notes.items())
        text = "\n".join([*lines(self.machine, self.entries), "", *notes]) + "\n"
        self.path.with_suffix(".txt").write_text(text)
        return text

    def measure(self, section: Section, scale: Scale, end: float) -> None:
        """Measure a section's cases anew, none of which begins after `end`."""
        name = section.__name__
        self.entries = [each for each in self.entries if each["section"] != name]
        cases, count = section(scale), 0
        self.notes[name] = "time ran out"
        while time.perf_counter() < end:
            try:
                case = next(cases, None)
            except Exception as error:
                traceback.print_exc()
                self.notes[name] = f"FAILED: {type(error).__name__}: {error}"
                break
            if case is None:
                self.notes[name] = "measured"
                break
            count += 1
            print(f"bench.cuda: {name}: {case.name}", flush=True)
            self.entries += [{"section": name, **case.entry(peer)} for peer in case.seconds]
            self.write()  # so that a case that is killed takes no other along
        self.notes[name] += f", {count} cases"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    sections = [section.__name__ for part in PARTS.values() for section in part]
    parser = argparse.ArgumentParser(prog="python -m bench.cuda", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda", 0))
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="tiny tensors, on any device: shows that it runs, and measures nothing",
    )
    parser.add_argument("--sections", nargs="+", choices=sections, default=sections)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no case after that many"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out what an earlier run here has measured"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = arguments(given)
    device: torch.device = options.device
    if device.type != "cuda" and not options.smoke:
        raise SystemExit(f"--device {device}: expected cuda, or --smoke, which measures nothing")
    end = time.perf_counter() + options.seconds
    scale = Scale(device)
    path = options.out / "gpu-check.json"
    results = Results(path, device_facts(device), resume=options.resume)
    if options.smoke:
        results.notes["smoke"] = SMOKE
        scale = Scale(device, 1 << 18, 2, 2, False, 20, 1 << 16, small=True)
    if device.type == "cuda":
        torch.cuda._sleep(1_000_000_000)  # half a second, in which the clocks rise
    for section in (each for part in options.part for each in PARTS[part]):
        name = section.__name__
        if name in options.sections and not results.notes.get(name, "").startswith("measured"):
            results.measure(section, scale, end)
            free(device)
    print(results.write())
    return int(any(note.startswith("FAILED") for note in results.notes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
