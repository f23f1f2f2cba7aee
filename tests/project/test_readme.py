"""The README fits one screen, runs as it stands, and quotes what is printed."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
from support.commands import call
from support.paths import ROOT

README = (ROOT / "README.md").read_text("utf-8")
BODY = README[: README.index("## Read on")]


def test_it_has_at_most_450_words_before_its_links() -> None:
    words = re.sub(r"<picture>.*?</picture>|<!--.*?-->", "", BODY, flags=re.DOTALL)
    assert len(words.split()) <= 450


def test_the_one_line_records_what_the_commands_below_it_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec("import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = None\n" + line, names)
    exec("model(torch.ones(1, 2)); watch.step(); watch.close()", names)
    commands = re.findall(r"^hookstats (.*?) +#", README, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        result = call(*shlex.split(command))
        assert (result.code, result.err) == (0, ""), command


def test_the_alert_is_what_the_run_of_the_picture_says() -> None:
    picture = (ROOT / "docs" / "figures" / "caught-light.svg").read_text("utf-8")
    (title,) = re.findall(r"<title>(.*?)</title>", picture)
    assert f"hookstats: warning: {html.unescape(title)}; what helps:" in README


def test_the_trainers_are_imported_from_where_they_are() -> None:
    found = re.findall(r"from hookstats\.integrations\.(\w+) import (\w+)", README)
    assert len(found) == 3
    for module, name in found:
        source = (ROOT / "hookstats" / "integrations" / f"{module}.py").read_text("utf-8")
        assert re.search(rf"^(class|def) {name}\b", source, re.MULTILINE)


def test_its_links_and_pictures_are_there() -> None:
    links = re.findall(r'\]\(([^)#]+)|(?:src|srcset)="([^"]+)"', README)
    assert len(links) > 10
    for link, picture in links:
        assert (ROOT / (link or picture)).exists()
