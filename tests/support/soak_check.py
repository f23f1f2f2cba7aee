"""What the soak's run must be: every step of the log is in the run as it was, or is explained."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from support.soak_model import BATCH, WIDTHS

from hookstats import StepRecord, open_run

WAITING = 15.0
"""The seconds before a kill whose steps may still be in memory: parts are written every five."""

Line = dict[str, Any]


class Log:
    """What the sessions wrote down."""

    def __init__(self, path: Path) -> None:
        self.attempts: dict[int, list[Line]] = defaultdict(list)
        """By step, each time that it was closed."""
        self.samples: list[Line] = []
        self.faults: Counter[str] = Counter()
        self.closed: list[Line] = []
        self.problems: list[str] = []
        self._ends: list[tuple[float, float]] = []  # of watches: since when may steps be lost, when
        self._full_since: float | None = None
        for number, text in enumerate(path.read_text().splitlines()):
            try:
                line = json.loads(text)
            except ValueError:  # a kill in the middle of a line
                self.problems += [f"line {number} of the log: {text!r}"] * (text[:1] != "{")
                continue
            self._take(line | {"number": number})

    def _take(self, line: Line) -> None:
        if "fault" in line:
            self.faults[line["fault"]] += 1
        if "interrupted" in line:
            self.faults["interrupt"] += 1
        if line.get("fault") == "full":
            self._full_since = line["at"]
        elif line.get("fault") == "freed":
            self._end_of_full(line["at"])
        if "step" in line:
            self.attempts[line["step"]].append(line)
        elif "sample" in line:
            self.samples.append(line)
        elif "closed" in line:
            self.closed.append(line)
            if self._full_since is not None:
                self._end_of_full(line["at"])
            self.problems += line["disabled"]
        elif "back" in line:
            self.faults["go back"] += not line.get("begun")

    def _end_of_full(self, at: float) -> None:
        if self._full_since is not None:
            self._ends.append((self._full_since - WAITING, at))
        self._full_since = None

    def killed(self, at: float) -> None:
        """Take into account that the process was killed at this time."""
        self.faults["kill"] += 1
        self._ends.append((at - WAITING, at))

    def may_be_lost(self, at: float) -> bool:
        """Whether a kill, or the end of a watch on a full disk, may have lost what closed then."""
        return any(first <= at <= last for first, last in self._ends)


def check(disk: Path, room: Path, kills: list[float]) -> tuple[dict[str, Any], list[str]]:
    """The figures of a soak, and what is wrong."""
    log = Log(room / "log.jsonl")
    for at in kills:
        log.killed(at)
    run = open_run(disk / "run")
    problems = log.problems + _check_files(disk / "run")
    recorded, gaps = set(run.steps), run.gaps_of()
    steps: Counter[str] = Counter()
    elements = 0
    before = -1  # the line of the log of the step before
    for step in range(max(recorded, default=-1) + 1):
        if step in recorded:
            record = run[step]
            elements += _elements(record)
            line, what = _match(record, log.attempts[step])
            steps[what] += 1
            if line is None:
                problems.append(f"step {step}: is not what was done: {what}")
            elif what == "exact":
                if line["number"] < before:
                    problems.append(f"step {step}: is of an earlier line of steps than step before")
                before = line["number"]
        else:
            why = _why_absent(step, log, gaps)
            steps[why] += 1
            if why == "unexplained":
                problems.append(f"step {step}: neither recorded nor explained")
    figures = {
        "steps closed": sum(map(len, log.attempts.values())),
        "steps of the run": max(recorded, default=-1) + 1,
        "of these": dict(steps),
        "elements": elements,
        "parts": len(list((disk / "run" / "parts").iterdir())),
        "bytes": sum(p.stat().st_size for p in (disk / "run").rglob("*") if p.is_file()),
        "faults": dict(log.faults),
        "sessions": len({sample["process"] for sample in log.samples}),
        **_flat(log.samples, problems),
    }
    return figures, problems


def _elements(record: StepRecord) -> int:
    whole = record.whole
    return int((whole.count + whole.nan + whole.posinf + whole.neginf).sum())


def _match(record: StepRecord, attempts: list[Line]) -> tuple[Line | None, str]:
    """The attempt that the record is of, and how well it is known; (None, why) if it is of none."""
    why = "there was no such step"
    for line in reversed(attempts):
        wrong = _wrong(record, line)
        if wrong is None:
            return line, "exact"
        why = wrong
    for line in reversed(attempts):
        if line["disturbed"] and not line["paused"]:
            return line, "interrupted or paused in part"
        if line["disturbed"]:
            return line, "paused in part"
    return None, why


def _wrong(record: StepRecord, line: Line) -> str | None:
    """Where the record is not what was done in an attempt; None if it is."""
    for name, channels in WIDTHS.items():
        for kind, calls in (
            ("output", line["calls"].get(name, 0)),
            ("grad_output", line["gradients"].get(name, 0)),
        ):
            found = record.get((name, kind))
            elements = 0 if found is None else int(found.per_tensor().count)
            if elements != calls * BATCH * channels:
                return f"{kind} of {name}: {elements} elements, expected {calls} calls"
        whole = record[name, "output"].per_tensor()
        total = float(whole.mean) * int(whole.count)
        if not math.isclose(total, line["sums"][name], rel_tol=1e-5, abs_tol=1e-4):
            return f"output of {name}: sum {total}, expected {line['sums'][name]}"
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
    if last["disturbed"]:
        return "lost by an interrupt"
    return "lost by a kill or a full disk" if log.may_be_lost(last["at"]) else "unexplained"


def _check_files(out: Path) -> list[str]:
    """What is in the directory of a closed run that should not be there."""
    allowed = {"run.json", "run-00000.json", "parts"}
    extra = [path.name for path in out.iterdir() if path.name not in allowed]
    extra += [path.name for path in (out / "parts").iterdir() if path.suffix != ".parquet"]
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
    for name, most in (("threads", 4), ("handles", 24)):
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
