"""Names and paths that would drive a terminal, or a spreadsheet, are shown escaped everywhere."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from support.commands import call, write_run
from support.payloads import payload_of
from support.samples import record_of

from hookstats import open_run, rules
from hookstats.cli.output import stdout
from hookstats.hooks.coverage import Coverage, SiteCoverage
from hookstats.records.record import StepRecord
from hookstats.show import page, terminal
from hookstats.show.notebook import record_html, run_html
from hookstats.stats.messages import warn

NAME = "\x1b]0;owned\x07\x1b[2J\r\u202e"
KIND = "output.\x1b[31m\n"
SHOWN_NAME = r"\x1b]0;owned\x07\x1b[2J\r\u202e"
SHOWN_KIND = r"output.\x1b[31m\n"


def evil(step: int) -> StepRecord:
    """A step with a NaN in a site that has an evil name."""
    x = torch.randn(4, 3)
    x[0, 0] = torch.nan if step else 0.0
    return record_of({(NAME, KIND): (x, 1), ("fine", "output"): (torch.randn(4, 3), 1)}, step)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with evil names, in a directory of such a name."""
    return write_run(tmp_path / "run\x1b[2J", evil(0), evil(1))


def assert_harmless(text: str) -> None:
    """Nothing but what people see, and line feeds."""
    assert [char for char in text if not (char.isprintable() or char == "\n")] == []


@pytest.mark.parametrize("command", ["show", "top", "compare", "report", "export"])
def test_the_terminal_gets_escapes(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    more: list[object] = []
    if command == "compare":
        more = [write_run(tmp_path / "other\x1b[2J", evil(1))]
    elif command == "export":
        more = ["-o", tmp_path / "out\x1b[2J.csv"]
    result = call(command, run, *more)
    assert result.err == ""
    assert_harmless(result.out)
    assert r"\x1b[2J" in result.out
    if command in ("show", "top", "compare"):
        assert SHOWN_NAME in result.out
        assert SHOWN_KIND in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "no\x1b[2Jrun"],
        ["export", ".", "-o", "a\x1b[2J.txt"],
        ["show", ".", "--\x1b[2J"],
        ["show", "RUN", "--layer", "\x1b[2J"],
        ["show", "RUN", "--step", "7"],
    ],
)
def test_errors_show_escapes(arguments: list[str], run: Path) -> None:
    result = call(*[str(run) if word == "RUN" else word for word in arguments])
    assert result.code == 2
    assert_harmless(result.err)
    assert r"\x1b[2J" in result.err


def test_damage_is_told_with_escapes(run: Path) -> None:
    part = min((run / "tensors").iterdir())
    part.write_bytes(part.read_bytes()[:-9])
    result = call("show", run)
    assert "left out" in result.err
    assert_harmless(result.err + result.out)
    with pytest.raises(ValueError, match="damaged") as caught:
        open_run(run).table()
    assert_harmless(str(caught.value))


def test_alerts_and_warnings_show_escapes(run: Path) -> None:
    alerts = rules.replay(open_run(run))
    assert len(alerts) == 1
    assert alerts[0].site == NAME  # the name itself, for code
    assert_harmless(alerts[0].message)
    with pytest.warns(RuntimeWarning) as caught:
        warn(f"hookstats: sink {NAME} failed\nin two lines")
    assert str(caught[0].message) == f"hookstats: sink {SHOWN_NAME} failed\nin two lines"


def test_tables_and_representations_show_escapes(run: Path) -> None:
    record = open_run(run)[1]
    file = io.StringIO()
    terminal.render(record, Console(file=file, width=300))
    row = SiteCoverage(NAME, KIND, 1, 0, {NAME: 1}, 0, 0, error=NAME)
    coverage = Coverage((row,), 1, 0, 0, {NAME: NAME})
    for text in (file.getvalue(), repr(record), str(coverage), repr(open_run(run))):
        assert_harmless(text)
        assert r"\x1b" in text
    assert next(iter(record)) == (NAME, KIND)


def test_the_page_and_notebooks_show_escapes(run: Path) -> None:
    whole = page.render(open_run(run))
    described = payload_of(whole)
    del described["bytes"], described["blocks"]
    assert [site["name"] for site in described["sites"]] == [SHOWN_NAME, "fine"]
    assert_harmless(json.dumps(described, ensure_ascii=False))
    for text in (whole, record_html(open_run(run)[1]), run_html(open_run(run))):
        assert_harmless(text)
        assert r"\x1b[2J" in text


def test_console_keeps_what_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print("[red]:smile:\n层\x1b[2J")
    assert capsys.readouterr().out == "[red]:smile:\n层\\x1b[2J\n"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_has_no_formulas(start: str, tmp_path: Path) -> None:
    name = f"{start}cmd|' /C calc'!A0"
    run = write_run(tmp_path / "run", record_of({(name, "output"): (-torch.ones(2, 2), 1)}))
    out = tmp_path / "run.csv"
    assert call("export", run, "-o", out).code == 0
    with out.open(newline="") as file:
        row = next(csv.DictReader(file))
    assert row["site"] == f"'{name}"
    assert row["kind"] == "output"
    assert float(row["mean"]) == -1.0  # numbers are as they are
    assert np.isfinite(float(row["min"]))
