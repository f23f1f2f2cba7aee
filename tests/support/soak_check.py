"""What the soak's run must be: every step of the log is in the run as it was, or is explained."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.soak_model import BATCH, WIDTHS

from hookstats import Run, open_run
from hookstats.runs.format import is_of_a_run

WAITING = 15.0
"""The seconds before a kill whose steps may still be in memory: parts are written every five."""

KNOWN_FAILURES = (
    *("closing out", "keeping the steps", "keeping up", "recording a step"),
    "writing to out",
)
"""What may fail with such disks, interrupts and such a stderr: whatever else fails is wrong."""

Line = dict[str, Any]
Found = dict[tuple[str, str], tuple[int, float]]


class Log:
    """What the sessions wrote down of one run directory."""

    def __init__(self, lines: Iterable[Line], *, is_replaced: bool) -> None:
        """is_replaced: whether another directory took the place of this one after these lines."""
        self.attempts: dict[int, list[Line]] = defaultdict(list)
        """By step, each time that it was closed."""
        self.last_step = -1
        self.samples: list[Line] = []
        self.faults: Counter[str] = Counter()
        self.closed: list[Line] = []
        self.problems: list[str] = []
        self._ends: list[tuple[float, float]] = []  # of watches: since when steps may be lost, when
        self._full_since: float | None = None  # the disk, but for moments
        self._freed_at: float | None = None
        self._open = False  # a watch was begun and not closed
        self._at = 0.0  # of the line before
        for line in lines:
            self._take(line)
        if is_replaced:
            self._end(self._at)

    def _take(self, line: Line) -> None:
        if "fault" in line:
            self.faults[line["fault"]] += 1
        if "interrupted" in line:
            self.faults["interrupt"] += 1
        if line.get("fault") == "full":
            if self._full_since is None or self._was_written(line["at"]):
                self._full_since = line["at"]
            self._freed_at = None
        elif line.get("fault") == "freed":
            self._freed_at = line["at"]
        if line.get("begun"):
            if self._open:  # the process was killed
                self.faults["kill"] += 1
                self._end(self._at)
            self._open = True
        if "sample" not in line:  # the first comes before the line of a new watch
            self._at = line["at"]
        if "step" in line:
            self.attempts[line["step"]].append(line)
            self.last_step = line["step"]
        elif "sample" in line:
            self.samples.append(line)
        elif "closed" in line:
            self.closed.append(line)
            self._open = False
            if self._full_since is not None and self._freed_at is None:
                self._end(line["at"])
            self._full_since = None  # what waited is written, or lost
            self.problems += line["disabled"]
            self.problems += [
                f"{what}: {why}"
                for what, why in line["failures"].items()
                if not what.startswith(KNOWN_FAILURES)
            ]
        elif "back" in line:
            self.faults["go back"] += not line.get("begun")

    def _end(self, at: float) -> None:
        """Note that a watch ended at this time, and what was not on the disk with it."""
        since = at if self._full_since is None or self._was_written(at) else self._full_since
        self._ends.append((since - WAITING, at))
        self._full_since = None

    def _was_written(self, at: float) -> bool:
        """Whether the disk had room for long enough before `at`: writers try now and then."""
        return self._freed_at is not None and at > self._freed_at + WAITING

    def may_be_lost(self, at: float) -> bool:
        """Whether a kill, or the end of a watch on a full disk, may have lost what closed then."""
        return any(first <= at <= last for first, last in self._ends)


def check(disk: Path, room: Path) -> tuple[dict[str, Any], list[str]]:
    """The figures of a soak, and what is wrong."""
    problems: list[str] = []
    of_runs = _by_run(_lines(room / "log.jsonl", problems), disk)
    steps: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    samples: list[Line] = []
    closed = elements = 0
    for out, lines in of_runs:
        log = Log(lines, is_replaced=out.name != "run")
        problems += log.problems
        elements += _check_run(out, log, steps, problems)
        closed += sum(map(len, log.attempts.values()))
        faults += log.faults
        samples += log.samples
    problems += _check_files(disk / "run")
    if (room / disk.name).exists():
        problems.append("a file was written relative to the directory that the process changed to")
    figures = {
        "steps closed": closed,
        "steps of the runs": steps.total(),
        "of these": dict(steps),
        "elements": elements,
        "parts": len(list(disk.glob("run*/tensors/*"))),
        "bytes": sum(p.stat().st_size for p in disk.glob("run*/**/*") if p.is_file()),
        "faults": dict(faults),
        "sessions": len({sample["process"] for sample in samples}),
        **_flat(samples, problems),
    }
    return figures, problems


def _lines(path: Path, problems: list[str]) -> list[Line]:
    """The log, in seconds in which the sessions were not stopped."""
    lines: list[Line] = []
    stopped = 0.0
    for number, text in enumerate(path.read_text().splitlines()):
        try:
            line = json.loads(text)
        except ValueError:  # a kill in the middle of a line
            problems += [f"line {number} of the log: {text!r}"] * (text[:1] != "{")
            continue
        stopped += line.get("seconds", 0.0)
        lines.append(line | {"number": number, "at": line["at"] - stopped})
    return lines


def _by_run(lines: Iterable[Line], disk: Path) -> list[tuple[Path, list[Line]]]:
    """The lines of each run directory: one was moved aside before the next one began."""
    of_runs: list[tuple[Path, list[Line]]] = []
    now: list[Line] = []
    aside: Path | None = None
    for line in lines:
        if line.get("begun") and aside is not None and aside.exists():
            of_runs.append((aside, now))
            now, aside = [], None
        now.append(line)
        if "aside" in line:
            aside = disk / line["aside"]
    return [*of_runs, (disk / "run", now)]


def _check_run(out: Path, log: Log, steps: Counter[str], problems: list[str]) -> int:
    """Compare a run with its log; counts its steps, and returns the elements that it has."""
    run = open_run(out)
    recorded, gaps = set(run.steps), run.gaps
    found, elements = _read(run)
    before = -1  # the line of the log of the step before
    first = min([*log.attempts, *recorded], default=0)
    for step in range(first, max(log.last_step, *recorded, -1) + 1):
        if step in recorded:
            line, what = _match(found[step], log.attempts[step])
            steps[what] += 1
            if line is None:
                problems.append(f"{out.name}: step {step}: is not what was done: {what}")
            elif what == "exact":
                if line["number"] < before:
                    why = "is of an earlier line of steps than the step before"
                    problems.append(f"{out.name}: step {step}: {why}")
                before = line["number"]
        else:
            why = _why_absent(step, log, gaps)
            steps[why] += 1
            if why == "unexplained":
                problems.append(f"{out.name}: step {step}: neither recorded nor explained")
    return elements


def _read(run: Run) -> tuple[dict[int, Found], int]:
    """The count and the mean of each tensor by step, and the elements of all."""
    found: dict[int, Found] = defaultdict(dict)
    elements = 0
    for key, site in run.series().items() if run.steps else ():
        elements += int((site.count + site.nan + site.posinf + site.neginf).sum())
        columns = (site.steps.tolist(), site.count.tolist(), site.mean.tolist())
        for step, count, mean in zip(*columns, strict=True):
            found[step][key] = (count, mean)
    return found, elements


def _match(found: Found, attempts: list[Line]) -> tuple[Line | None, str]:
    """The attempt that a record is of, and how well it is known; (None, why) if it is of none."""
    why = "there was no such step"
    for line in reversed(attempts):
        wrong = _wrong(found, line)
        if wrong is None:
            return line, "exact"
        why = wrong
    for line in reversed(attempts):
        if line["disturbed"] and not line["paused"]:
            return line, "interrupted or paused in part"
        if line["disturbed"]:
            return line, "paused in part"
    return None, why


def _wrong(found: Found, line: Line) -> str | None:
    """Where a record is not what was done in an attempt; None if it is."""
    for name, channels in WIDTHS.items():
        for kind in ("output", "grad_output"):
            calls = line["calls" if kind == "output" else "gradients"].get(name, 0)
            elements, mean = found.get((name, kind), (0, math.nan))
            if elements != calls * BATCH * channels:
                return f"{kind} of {name}: {elements} elements, expected {calls} calls"
            total, expected = mean * elements, line["sums"][name]
            wrong = not math.isclose(total, expected, rel_tol=1e-5, abs_tol=1e-4)
            if kind == "output" and elements and wrong:
                return f"output of {name}: sum {total}, expected {expected}"
    return None


def _why_absent(step: int, log: Log, gaps: dict[int, str]) -> str:
    attempts = log.attempts.get(step)
    if step in gaps:
        return f"gap: {gaps[step]}"
    if not attempts:
        return "never closed"
    last = attempts[-1]
    if last["paused"]:
        return "paused"
    lost = "lost by a kill, a full disk or a replaced directory"
    return lost if log.may_be_lost(last["at"]) else "unexplained"


def _check_files(out: Path) -> list[str]:
    """What is in the directory of a closed run that should not be there."""
    names = [path.name for path in out.iterdir()]
    extra = [name for name in names if not is_of_a_run(name) or name.startswith("lock-")]
    extra += [path.name for path in (out / "tensors").iterdir() if path.suffix != ".parquet"]
    return [f"left over: {name}" for name in extra]


def _flat(samples: list[Line], problems: list[str]) -> dict[str, Any]:
    """How memory, threads and handles went in the longest session."""
    by_process: dict[int, list[Line]] = defaultdict(list)
    for sample in samples:
        by_process[sample["process"]].append(sample)
    longest = max(by_process.values(), key=len)
    steady = longest[len(longest) // 4 :] or longest
    first, last = steady[: max(1, len(steady) // 4)], steady[-max(1, len(steady) // 4) :]

    def mean(part: list[Line], name: str) -> float:
        return sum(line[name] for line in part) / len(part)

    grown = mean(last, "resident") - mean(first, "resident")
    steps = longest[-1]["sample"] - steady[0]["sample"]
    if grown > 32 << 20:
        problems.append(f"memory grew by {grown / 2**20:.0f} MiB in {steps} steps")
    for name, most in (("threads", 4), ("handles", 12)):
        highest = max(line[name] for line in samples)
        if highest > most:
            problems.append(f"{highest} {name}")
    return {
        "longest session": {
            "steps": longest[-1]["sample"],
            "resident MiB, early": round(mean(first, "resident") / 2**20, 1),
            "resident MiB, late": round(mean(last, "resident") / 2**20, 1),
        },
        "threads": sorted({line["threads"] for line in samples}),
        "handles": sorted({line["handles"] for line in samples}),
    }
