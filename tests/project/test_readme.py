"""What the README shows runs as it stands and prints what it says."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from support.commands import call, healthy, write_run
from support.paths import ROOT
from support.printed import numbers, shape

README = (ROOT / "README.md").read_text()


def test_the_examples_print_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n([^`]*?)```\n\nprints\n\n```\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, promised in examples:
        exec(compile(code, "README.md", "exec"), names)
        printed = capsys.readouterr().out
        assert shape(printed) == shape(promised)
        # Other processors add in another order.
        assert numbers(printed) == pytest.approx(numbers(promised), abs=2e-3)


def test_the_one_line_on_top_records_what_the_commands_below_it_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    top = README[: README.index("## In a training loop")]
    (line,) = re.findall(r"```python\n(.*?)```", top, re.DOTALL)
    names: dict[str, object] = {}
    exec("import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = None\n" + line, names)
    exec("model(torch.ones(1, 2)); watch.step(); watch.close()", names)
    commands = re.findall(r"^hookstats (.*?) +#", top, re.MULTILINE)
    assert [call(*shlex.split(command)).code for command in commands] == [0, 0]


def test_the_picture_shows_the_alert_that_its_text_quotes() -> None:
    quoted = " ".join(re.findall(r'alt="([^"]*)"', README)[0].split())
    for theme in ("light", "dark"):
        assert f"docs/figures/caught-{theme}.svg" in README
        picture = (ROOT / "docs" / "figures" / f"caught-{theme}.svg").read_text("utf-8")
        (title,) = re.findall(r"<title>(.*?)</title>", picture)
        assert html.unescape(title) in quoted


@pytest.mark.check
def test_the_arguments_and_the_single_tensor_run_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (call_of_watch,) = re.findall(r"```python\n(hs\.watch\(.*?)```", README, re.DOTALL)
    (single,) = re.findall(r"```python\n(s = hs\..*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    setup = """
import hookstats as hs, torch
from torch import nn
model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(4, 4))})
optimizer = torch.optim.SGD(model.parameters())
x = torch.randn(8, 3, 4)
"""
    exec(setup + "watch = " + call_of_watch + "watch.close()\n" + single, names)
    assert Path("runs/a/run.json").exists()


def test_the_commands_run_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(Path("runs") / name, healthy(0), healthy(1))
    commands = re.findall(r"^hookstats (.*?) +#", README, re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        result = call(*shlex.split(command))
        assert (result.code, result.err) == (0, ""), command
