"""hookstats top: a frame of a running training run, and the live view around it."""

from __future__ import annotations

import io
import math
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.commands import call, healthy, write_run
from support.samples import BINS, record_of

import hookstats as hs
from hookstats.cli import top, view
from hookstats.insight.comparison import format_ratio
from hookstats.records.alerts import Alert, Severity, incidents_of
from hookstats.records.record import StepRecord
from hookstats.runs.alerts import AlertEntry, AlertFile
from hookstats.runs.files import RunDirectory
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter


def growing(step: int) -> StepRecord:
    """A layer at rest, one whose values double each step, one with a NaN from step 4 on."""
    x = torch.ones(4, 4)
    x[:, 0] = -1.0
    sick = x.clone()
    if step >= 4:
        sick[0, 1] = torch.nan
    data = {"rest": x, "doubles": x * 2.0**step, "sick": sick}
    return record_of({(name, "output"): (x, 1) for name, x in data.items()}, step)


def test_the_loss_stands_above_the_table(tmp_path: Path) -> None:
    with hs.watch(torch.nn.Linear(2, 2), kinds=("output",), out=tmp_path / "run") as watch:
        watch.log(loss=2.5)
        watch.step()
    words = call("top", tmp_path / "run", "--once").words
    assert words[1:3] == ["loss 2.50", ""]


def test_once_prints_one_frame(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(growing, range(6)), close=False)
    once = partial(call, "top", run, "--rules", "non-finite")
    result = once("--once")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(rf"{run}: step 5, 6 recorded, written \d+ s ago", result.words[0])
    assert result.words[2:4] == ["non-", "layer kind rms, last 12 rms change finite dead"]
    assert result.words[4:7] == [
        "sick output ██████ 1.00 same 1 0/4",
        "doubles output ▂▂▂▃▅█ 32.0 x32 0 0/4",
        "rest output ██████ 1.00 same 0 0/4",
    ]
    alerts = result.words[result.words.index("") + 7 :]
    assert any("step 4" in words and "'sick'" in words for words in alerts)
    assert once().words[1:] == result.words[1:]  # a pipe is not watched


def test_what_an_incident_began_with_comes_first(tmp_path: Path) -> None:
    """The last layer gets a NaN first; what follows is in a layer that stands before it."""

    def step(number: int) -> StepRecord:
        x = torch.ones(4, 4)
        sick = torch.full((4, 4), torch.nan)
        data = {
            "calm": x,
            "follows": sick if number > 3 else x,
            "began": sick if number in (2, 3) else x * 1.01**number,
        }
        return record_of({(name, "output"): (t, 1) for name, t in data.items()}, number)

    run = write_run(tmp_path / "run", *map(step, range(6)))
    result = call("top", run, "--rules", "non-finite")
    assert [words.split()[0] for words in result.words[4:7]] == ["began", "follows", "calm"]


def test_a_parameter_with_an_incident_shows_as_the_output_of_its_module(tmp_path: Path) -> None:
    data = {(name, "output"): (torch.ones(4, 4), 1) for name in ("a", "b", "c")}
    run = write_run(tmp_path / "run", record_of(data, 0))
    said = "initialisation: step 0: large"
    levels: list[Severity] = ["note", "error"]  # of a warning, the error would be a consequence
    told = [
        AlertEntry(
            Alert(0, 0, f"{name}.weight", "param", None, name, 1.0, said, level), i, True, {}
        )
        for i, (name, level) in enumerate(zip("bc", levels, strict=True))
    ]
    AlertFile(RunDirectory(run), 0).write(told)
    rows = call("top", run).words[4:7]
    assert [words.split()[0] for words in rows] == ["c", "b", "a"]


def test_a_closed_run_and_a_run_without_steps(tmp_path: Path) -> None:
    closed = write_run(tmp_path / "closed", growing(0))
    result = call("top", closed)
    assert result.words[0] == f"{closed}: step 0, 1 recorded, closed"
    assert result.words[-1] == "no incidents"
    empty = write_run(tmp_path / "empty", close=False)
    assert call("top", empty) == (0, f"{empty}: no step yet\n", "")


def test_sites_are_chosen_and_limited(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(growing, range(6)))
    result = call("top", run, "--layer", "d*", "--layer", "rest")
    assert [words.split()[0] for words in result.words[4:6]] == ["doubles", "rest"]
    assert result.words[-1] == "no incidents"
    result = call("top", run, "--limit", 1)
    assert result.words[5] == "... and 2 more"
    result = call("top", run, "--layer", "double")
    assert (result.code, result.out) == (2, "")
    assert "'doubles'" in result.err


@pytest.mark.parametrize(
    ("values", "drawn", "changed"),
    [
        ([1.0], "█", ""),
        ([0.0, 0.0], "▁▁", "same"),
        ([0.0, 1.0], "▁█", "from 0"),
        ([4.0, 3.0, 2.0, 1.0, 0.0], "█▇▅▃▁", "to 0"),
        ([1.0, math.nan, 2.0], "▅ █", "x2"),
        ([math.nan, 2.0], " █", ""),
        ([2.0, math.inf], "██", "from 0"),
        ([1.0, 35.2], "▂█", "x35.2"),
    ],
)
def test_curves_and_changes(values: list[float], drawn: str, changed: str) -> None:
    assert view.draw(deque(values)) == drawn
    assert format_ratio(view._factor(deque(values))) == changed


def test_a_frame_follows_the_run(tmp_path: Path) -> None:
    """New parts are taken in, in portions; a step back to a checkpoint begins anew."""
    header = {"bins": BINS, "channel_bins": growing(0).channel_bins}
    writer = RunWriter(tmp_path / "run", header, seconds_per_part=0)
    watched = view.View(open_run(tmp_path / "run"), rules="non-finite")
    assert not watched.read()
    assert watched.sites == []
    for step in range(3):
        writer.write(growing(step))
    assert watched.read(seconds=0)  # one step, and two are left
    console = Console(width=100)
    headline, *_ = watched.frame(console, 10)
    assert ": step 0, 3 recorded, 2 still to read, written " in str(headline)
    assert not watched.read()
    writer.write(growing(3))
    writer.write(growing(4))
    watched.read()
    assert watched.sites[2].nonfinite == 1
    assert len(watched.alerts) > 0
    writer.write(growing(1))
    watched.read()
    headline, *_ = watched.frame(console, 10)
    assert ": step 1, 2 recorded, written " in str(headline)
    assert watched.alerts == []


@pytest.mark.check
def test_of_a_long_run_the_last_steps_are_read(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        *(
            record_of({("a", "output"): (torch.full((2, 2), float(step)), 1)}, step)
            for step in range(304)
        ),
    )
    result = call("top", run)
    assert result.words[0] == f"{run}: step 303, 304 recorded, the first 4 not read, closed"
    assert "a output ████████████ 303 +3.8% 0 0/2" in result.words


@contextmanager
def live(run: Path, rows: int, columns: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A `top` in a terminal of its own, and the terminal's other end."""
    import fcntl
    import pty
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {name: v for name, v in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "hookstats", "top", run.name]
    with subprocess.Popen(
        command,
        cwd=run.parent,
        env={**environment, "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as process:
        os.close(its)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, text: str, seconds: float = 60.0) -> str:
    """What the terminal gets until it has the text."""
    seen = b""
    deadline = time.monotonic() + seconds
    while text.encode() not in seen:
        assert time.monotonic() < deadline, seen.decode()
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
    return seen.decode()


def test_a_small_terminal_has_a_line_for_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 x 24, no more is spent on names and alerts than one line each."""
    names = [f"transformer.h.{i}.attention.projection_{side}" for i in range(30) for side in "qk"]
    x = torch.randn(4, 4)

    def step(number: int) -> StepRecord:
        bad = x if number < 2 else torch.full((4, 4), torch.nan)
        data = {(name, "grad_output"): (bad if i == 40 else x, 1) for i, name in enumerate(names)}
        return record_of(data, number, channel_bins=None)

    monkeypatch.chdir(tmp_path)
    watched = view.View(open_run(write_run(Path("run"), *map(step, range(3)))), rules="default")
    watched.read()
    assert watched.alerts
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, color_system=None)
    console.print(top.fit(watched, console, None), end="")
    lines = file.getvalue().splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    # A headline, the head of the table, the number of sites left out, and the incidents.
    incidents = len(incidents_of(watched.alerts))
    rows = lines[4 : 24 - 1 - 1 - 1 - min(incidents, view.ALERTS)]
    assert len(rows) >= 13
    assert len({row.split()[0] for row in rows}) == len(rows)
    assert all(row.startswith("tr") and " grad_output " in row for row in rows)


@pytest.mark.check
@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
@pytest.mark.parametrize("how", ["q", "interrupt"])
def test_the_live_view_refreshes_and_quits(tmp_path: Path, how: str) -> None:
    header = {"bins": BINS, "channel_bins": None}
    writer = RunWriter(tmp_path / "run", header, seconds_per_part=0)
    writer.write(healthy(0))
    with live(tmp_path / "run", rows=9, columns=80) as (process, terminal):
        frame = read_until(terminal, "no incidents")
        assert "step 0, 1 recorded" in frame
        assert "... and 4 more" in frame  # the terminal is 9 lines high
        writer.write(healthy(1))
        read_until(terminal, "step 1, 2 recorded")
        if how == "q":
            os.write(terminal, b"q")
        else:
            process.send_signal(signal.SIGINT)
        read_until(terminal, "\x1b[?1049l")  # the screen from before is back
        assert process.wait(60) == 0
