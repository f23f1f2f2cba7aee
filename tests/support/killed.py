"""Writers that are killed at random moments: `python -m support.killed DIRECTORY`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from support.samples import BINS, CHANNEL_BINS, sample

from hookstats.records.record import StepRecord
from hookstats.runs.writer import RunWriter

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS, "model": "Réseau"}
RUNS, SESSIONS = 10, 5
MAX_BYTES = 40_000
"""Of every second run."""


@cache
def contents(i: int) -> StepRecord:
    return sample(i)


def record(step: int) -> StepRecord:
    """The record of a step; the records of 8 steps take turns, since each takes time to make."""
    return replace(contents(step % 8), step=step)


def write_until_killed(out: Path, max_bytes: int | None) -> None:
    """Continue the run in `out`, every step a part."""
    writer = RunWriter(out, HEADER, seconds_per_part=0, append=True, max_bytes=max_bytes)
    step = 0 if writer.last_step is None else writer.last_step + 1
    while True:
        writer.write(record(step))
        step += 1


def main(directory: Path) -> None:
    """Kill the writer of each run SESSIONS times, and keep a copy of the run after each.

    The writers are forked from one process that has already done everything that is slow the first
    time, so that many can be killed in little time.
    """
    for step in range(8):
        RunWriter(directory / "first", HEADER, append=True).write(record(step))
    for trial in range(RUNS * SESSIONS):
        run = trial % RUNS
        out = directory / f"run{run}"
        parts = out / "tensors"
        before = max(parts.glob("0*"), default=Path())
        child = os.fork()
        if child == 0:
            write_until_killed(out, MAX_BYTES if run % 2 else None)
        # A moment after the writer's first part, however slow the machine is.
        while max(parts.glob("0*"), default=Path()) <= before:
            time.sleep(0.001)
        time.sleep(random.Random(trial).uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.copytree(out, directory / f"trial{trial}", copy_function=os.link)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
