"""The command line in this process and in others, and runs for it to read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from support.samples import BINS, record_of

from hookstats.cli import main
from hookstats.records.record import StepRecord
from hookstats.runs.writer import RunWriter


class Result(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> list[str]:
        """The lines of `out`, their words one space apart."""
        return [" ".join(line.split()) for line in self.out.splitlines()]


def call(*arguments: object) -> Result:
    """Run a command in this process; outputs are no terminals."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.modules["__main__"], sys.argv, sys.path[:]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # argparse
            code = error.code if isinstance(error.code, int) else 1
        finally:  # `run` and `check` make their script the main module
            sys.modules["__main__"], sys.argv, sys.path[:] = before
    return Result(code, out.getvalue(), err.getvalue())


def spawn(*arguments: object, cwd: Path | None = None, **environment: str) -> Result:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "hookstats", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def write_run(out: Path, *records: StepRecord, close: bool = True, rank: int = 0) -> Path:
    """Write a run, each record a part."""
    bins = records[0].bins if records else BINS
    channel_bins = records[0].channel_bins if records else None
    header = {"bins": bins, "channel_bins": channel_bins}
    writer = RunWriter(out, header, rank=rank, seconds_per_part=0)
    for record in records:
        writer.write(record)
    if close:
        writer.close({"rows": []})
    return out


def parts_of(run: Path, rank: int = 0) -> list[Path]:
    """The parts of one rank of a run, in order."""
    return sorted((run / "tensors").glob(f"{rank:05d}-*"))


def healthy(
    step: int,
    changes: Mapping[tuple[str, str], float] | None = None,
    rank: int = 0,
) -> StepRecord:
    """A step of a small network in good health; `changes` scale the tensors of some sites."""
    generator = torch.Generator().manual_seed(step)
    shapes = {
        ("encoder.0", "output"): (8, 4),
        ("encoder.1", "output"): (8, 6),
        ("head", "output"): (8, 3),
        ("head", "grad_output"): (8, 3),
        ("encoder.1", "grad_output"): (8, 6),
        ("head.weight", "param_grad"): (3, 6),
    }
    return record_of(
        {
            key: (torch.randn(shape, generator=generator) * (changes or {}).get(key, 1.0), 1)
            for key, shape in shapes.items()
        },
        step,
        rank,
        channel_bins=None,
    )
