"""Reads run directories from strangers: `python -m support.strangers FIRST END DIRECTORY`.

Each case is made by `stranger_cases.build` from its number, and is read in a few of the ways there
are. What must not happen is printed, one line of JSON per finding.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.commands import call, healthy
from support.paths import DATA
from support.samples import record_of, sample, tensors
from support.stranger_cases import Files, build

from hookstats.records.alerts import SEVERITIES, Alert
from hookstats.records.layout import Axis, Layout, Mesh, cuts_of
from hookstats.records.record import StepRecord
from hookstats.records.summary import summarise
from hookstats.runs.alerts import Told
from hookstats.runs.run import Run, open_run
from hookstats.runs.writer import RunWriter
from hookstats.show.notebook import about_html

SECONDS = 2.0
"""The most processor time that reading a case may take."""
BYTES = 1 << 30
"""The most memory that all cases together may take, beside what the libraries take."""
LETTERS = 2000
"""The most that an error may say."""

_OTHER_WIDTHS = "expected the same number in every step"  # of a site, which is named
# What reading a run may raise, as its docstrings say.
_PROMISED = (ValueError, KeyError, FileNotFoundError)


def bases(scratch: Path) -> list[Files]:
    """Run directories that are as they should be: small, of every version, and of many features."""
    _write(scratch / "small", [healthy(0), healthy(1)])
    _write(scratch / "odd", [sample(0), sample(1)])
    back = [record_of(tensors(i), i) for i in (0, 1, 2, 1)]
    _write(scratch / "back", back, seconds=3600)  # one part, which goes back
    for rank in (0, 3):
        _write(scratch / "ranks", [record_of(tensors(5), 5, rank)], rank)
    for rank, seconds in enumerate((0, 3600)):  # of the second rank, one part
        spread = [_spread(step, rank) for step in (0, 1, 2, 1)]
        _write(scratch / "told", spread, rank, seconds, told=True)
    paths = [scratch / name for name in ("small", "odd", "back", "ranks", "told", "told")]
    paths += [DATA / "format-1", DATA / "format-2"]
    return [
        {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")}
        for path in paths
    ]


def _spread(step: int, rank: int) -> StepRecord:
    """A record of half a batch, and of half of a weight, in training and in a phase."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
    sites = {
        (f"relu{end}", f"{phase}output"): (x, 1)
        for end in ("", "@1[6ch]")
        for phase in ("", "fake:", "evaluation:")
    }
    record = record_of({**sites, ("relu.weight", "param"): (x, 0)}, step, rank)
    mesh = (Mesh((Axis("dp", rank, 2),), 0),)
    batch = Layout(mesh, ("Shard(0)",), None, None)
    weight = Layout(mesh, ("Shard(0)",), (8, 6), cuts_of(0, np.arange(4) * 2 + rank))
    layouts = [weight if site.kind == "param" else batch for site in record.sites]
    with_layouts = zip(record.sites, layouts, strict=True)
    return replace(
        record, sites=tuple(site._replace(layout=layout) for site, layout in with_layouts)
    )


def _tell(writer: RunWriter, step: int) -> None:
    """What a run has beside records."""
    writer.write_scalars(step, 1e9 + step, {"loss": 1.0 / (step + 1), "lr/0": 0.1, "odd": math.nan})
    about = (step, writer.rank, "relu", "fake:output", step or None, "dead channels", 0.5 * step)
    for severity in SEVERITIES:
        alert = Alert(*about, f"dead channels: step {step}: relu", severity)
        writer.write_alerts([Told(alert, step, severity == "note", {"share": 0.5})])
    if step == 2:
        writer.skip(3, "stall")


def _write(
    out: Path, records: list[Any], rank: int = 0, seconds: float = 0, *, told: bool = False
) -> None:
    header = {
        "model": "Net",
        "modules": {"whole": "Linear"},
        "parameters": {"whole.weight": [3, 4]},
        "kinds": ["output", "param_grad"],
        "every": 1,
        "moments": 4 if records[0].moments.shape[1] == 7 else 2,
        "torch": "2.13.0",
        "bins": records[0].bins,
        "channel_bins": records[0].channel_bins,
    }
    writer = RunWriter(out, header, rank=rank, seconds_per_part=seconds)
    for record in records:
        writer.write(record)
        if told:
            _tell(writer, record.step)
    row = {"name": "whole", "kind": "output", "forwards": 2, "observed": 1, "error": None}
    row |= {"skipped": {"no channels": 1}, "backwards": 0, "missing": 0}
    totals = {"steps": 2, "discarded": 0, "stalls": 0, "failures": {"sink X": "ValueError: no"}}
    writer.close({"rows": [row], **totals})


class Reader:
    """Reads cases, and finds what must not happen."""

    def __init__(self, scratch: Path) -> None:
        self.out = scratch / "strange-run"
        self.room = scratch / "room"
        self.room.mkdir()
        self.other = scratch / "small"
        self.out.mkdir()
        self.bases = bases(scratch)
        self.victim = scratch / "victim.json"
        self.victim.write_text("{}")
        self.scratch = scratch
        self._names = {path.name for path in scratch.iterdir()}

    def findings(self, case: int) -> Iterator[str]:
        """What is wrong with how one case is read."""
        for path in (self.out, self.room):
            if path is self.out or any(path.iterdir()):
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
        done = build(case, self.bases, self.out, self.victim)
        before = _state(self.out)
        began = time.process_time()
        rng = random.Random(case)
        # Commands take three times as long, and begin as the others do.
        ways = self._commands() if rng.random() < 0.2 else self._reads()
        name = rng.choice(list(ways))
        for problem in ways[name]():
            yield f"case {case}: {done}; {name}: {problem}"
        spent = time.process_time() - began
        if spent > SECONDS:
            yield f"case {case}: {done}: took {spent:.1f} s"
        if _state(self.out) != before:
            yield f"case {case}: {done}: the run was changed"
        left = {path.name for path in self.scratch.iterdir()} - self._names
        if left or self.victim.read_text() != "{}":
            yield f"case {case}: {done}: wrote outside: {left}"

    def _reads(self) -> dict[str, Callable[[], Iterator[str]]]:
        """The ways of reading a run in Python."""
        return {
            "record": lambda: self._api(_records),
            "table": lambda: self._api(Run.table),
            "series": lambda: self._api(_series),
            "skip": lambda: self._api(_records, skip_damaged=True),
            "notebook": lambda: self._api(_html),
            "scalars": lambda: self._api(_scalars),
            "alerts": lambda: self._api(_alerts),
        }

    def _commands(self) -> dict[str, Callable[[], Iterator[str]]]:
        """The commands that read a run."""
        out, room = self.out, self.room
        return {
            "show": lambda: self._command("show", out, "--step", -1),
            "top": lambda: self._command("top", "--once", out),
            "report": lambda: self._command("report", out, "-o", room / "report.html"),
            "csv": lambda: self._command("export", out, "-o", room / "run.csv"),
            "channels": lambda: self._command("export", "--channels", out, "-o", room / "c.csv"),
            "parquet": lambda: self._command("export", out, "-o", room / "run.parquet"),
            "compare": lambda: self._command("compare", out, self.other),
            "ls": lambda: self._command("ls", out),
        }

    def _api(self, read: Callable[[Run], object], *, skip_damaged: bool = False) -> Iterator[str]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if skip_damaged:
                    warnings.filterwarnings("ignore", "hookstats: left out", RuntimeWarning)
                read(open_run(self.out, skip_damaged=skip_damaged))
        except _PROMISED as error:
            if self.out.name not in str(error):
                yield f"{type(error).__name__} names no file: {error}"[:LETTERS]
            if len(str(error)) > LETTERS:
                yield f"an error of {len(str(error))} letters: {str(error)[:200]}"
        except BaseException as error:
            if isinstance(error, OSError) and str(error.filename).startswith(str(self.out)):
                return
            yield f"{type(error).__name__}: {error}"[:LETTERS]

    def _command(self, *arguments: object) -> Iterator[str]:
        try:
            result = call(*arguments)
        except BaseException as error:
            yield f"ended with {type(error).__name__}: {error}"[:LETTERS]
            return
        lines = result.err.splitlines()
        failed = any(": error: " in line for line in lines)
        if result.code not in (0, 1, 2) or failed != (result.code == 2):
            yield f"exit code {result.code}, stderr {result.err[:500]!r}"
        for line in lines:
            if not line.startswith("hookstats") or not line.isprintable():
                yield f"on stderr: {line!r}"[:LETTERS]
            named = self.out.name in line or _OTHER_WIDTHS in line
            if ("error: " in line and not named) or len(line) > LETTERS:
                yield f"an error that names no file, or too long: {line!r}"[:LETTERS]
            if "warning: " in line and not ("left out" in line or "rule '" in line):
                yield f"a warning: {line!r}"[:LETTERS]
        if any(not line.isprintable() for line in result.out.split("\n")):
            yield f"it prints what drives a terminal: {result.out!r}"[:LETTERS]


def _records(run: Run) -> None:
    for each in (run, *map(run.of_rank, run.ranks)):
        for step in each.steps[:3]:
            record = each[step]
            summarise(record)
            for key in list(record)[:3]:
                repr(record[key])
    repr((run, run.closed, run.coverage, run.gaps, run.thinned))


def _series(run: Run) -> None:
    for each in (run, *map(run.of_rank, run.ranks)):
        for site in each.series().values():
            repr((site, site.shape))
            assert len(site.std) == len(site.rms) == len(site)
            assert site.hist is None or len(site.hist) == len(site)


def _scalars(run: Run) -> None:
    for each in (run, *map(run.of_rank, run.ranks)):
        for name, series in each.scalars.items():
            repr((name, series, series.steps, series.values, series.times))
        each.scalars.table()
        repr((each.scalars, [dict(each.scalars.of(step)) for step in each.scalars.steps[:3]]))


def _alerts(run: Run) -> None:
    for each in (run, *map(run.of_rank, run.ranks)):
        repr((each.alerts, each.incidents, [str(incident) for incident in each.incidents]))


def _html(run: Run) -> None:
    about_html(run)  # without its figure, which is slow
    if len(run):
        series = run.series()
        repr((series._repr_html_(), run[int(series.steps[-1])]._repr_html_()))


def _state(out: Path) -> list[Any]:
    """What is in a directory, without reading anything."""
    found = []
    for directory, names, files in os.walk(out):
        for name in (*names, *files):
            about = os.lstat(os.path.join(directory, name))  # noqa: PTH118
            found.append((directory, name, about.st_mode, about.st_size, about.st_mtime_ns))
    return sorted(found)


def main(first: int, end: int, scratch: Path) -> None:
    reader = Reader(scratch)
    os.chdir(scratch)  # the paths of sockets must be short
    for case in range(1, 30):  # what is loaded once takes memory once
        list(reader.findings(case))
    gc.collect()
    gc.freeze()  # modules: collections need not look at them
    size = _resident()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * BYTES, resource.RLIM_INFINITY))
    for case in range(first, end):
        (scratch / "case.txt").write_text(str(case))
        reader._names.add("case.txt")
        for finding in reader.findings(case):
            print(json.dumps(finding), flush=True)
    grown = _most_resident() - size
    if grown > BYTES:
        print(json.dumps(f"cases {first} to {end}: {grown >> 20} MiB of memory"))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _most_resident() -> int:
    """The most there was so far. `getrusage` would count a large parent of this process, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
