"""What is said of the disk: at the second step, and before the first steps go."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hookstats as hs
from hookstats.stats.notice import size

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def train(out: Path, steps: int, **settings: object) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, optimizer, out=out, rules=(), **settings) as w:  # type: ignore[arg-type]
        for _ in range(steps):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            w._flusher.drain(disk=False)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "hookstats"]


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookstats")


@pytest.mark.parametrize("detail", ["channel", "tensor"])
def test_the_second_step_says_what_a_thousand_take(
    detail: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "one", 1, detail=detail)
    assert said(caplog) == []
    train(tmp_path / "run", 200, detail=detail)
    (line,) = said(caplog)
    found = re.fullmatch(
        rf"{tmp_path}/run takes about (\S+) (\S+) per 1,000 steps; old steps are thinned above "
        r"10 GiB \(max_bytes\), after about ([\d,]+) steps",
        line,
    )
    assert found
    promised = float(found[1]) * UNITS[found[2]]
    taken = sum(path.stat().st_size for path in (tmp_path / "run" / "parts").iterdir())
    assert promised == pytest.approx(5 * taken, rel=0.3)
    after = float(found[3].replace(",", ""))
    assert after == pytest.approx(1000 * (10 << 30) / promised, rel=0.15)
    assert inspect.signature(hs.watch).parameters["max_bytes"].default == 10 << 30


def test_fewer_steps_take_less(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for every in (1, 10):
        train(tmp_path / str(every), 11, every=every, max_bytes=None)
    one, tenth = said(caplog)
    assert one.endswith(" per 1,000 steps, without a limit (max_bytes=None)")
    bytes_of = [
        float(number) * UNITS[unit]
        for number, unit in (re.findall(r"about (\S+) (\S+) per", line)[0] for line in (one, tenth))
    ]
    assert bytes_of[0] / bytes_of[1] == pytest.approx(10, rel=0.2)


def test_the_first_deletion_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "run", 60, max_bytes=200_000)
    _, line = said(caplog)
    assert line == (
        f"{tmp_path}/run has reached 195 KiB (max_bytes): from now on old steps are thinned, never "
        "new ones"
    )
    assert hs.open_run(tmp_path / "run").thinned > 0


@pytest.mark.check
def test_without_a_log_stderr_has_it_and_the_log_silences_it(tmp_path: Path) -> None:
    code = (
        "import sys, logging, torch, hookstats as hs\n"
        "if sys.argv[2:]: logging.getLogger('hookstats').setLevel(logging.WARNING)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with hs.watch(model, out=sys.argv[1], rules=()) as w:\n"
        "    for _ in range(3): model(torch.ones(2, 2)); w.step()\n"
    )
    errors = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / out), *quiet],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stderr
        for out, quiet in (("loud", []), ("quiet", ["quiet"]))
    ]
    assert errors[0].startswith(f"hookstats: {tmp_path}/loud takes about ")
    assert errors[0].count("\n") == 1
    assert errors[1] == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1536, "1.5 KiB"),
        (10 << 30, "10 GiB"),
        (3e15, "2728 TiB"),
    ],
)
def test_sizes_are_written_for_people(number: float, text: str) -> None:
    assert size(number) == text
