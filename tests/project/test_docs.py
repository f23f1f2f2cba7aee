"""What the docs, the README and the examples show runs as it stands and prints what it says.

Of a page, in reading order and in one directory: every block of Python runs, one with a file's name
for a caption is written there, and every command of a console is called. What they print is the
text that follows; decimals may differ a little, as other processors add in another order.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
from support.commands import call
from support.paths import ROOT

import hookstats
from hookstats import insight, rules, sinks

DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<directive>\S+)(?: (?P<argument>\S+))?\n"
    r"(?: *:caption: (?P<file>\S+)\n\n)?(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
SHOWN = re.compile(r"^ *```(python|console)$", re.MULTILINE)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if SHOWN.search(page.read_text("utf-8"))]

SETUP = {
    "guides/from-hooks.md": """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x, y=0.0, z=0.0):
        return self.fc(self.layer1(2 * x + 3 * y - 5 * z))

model = Model()
x, y, z = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
target = torch.randn(3, 2)
fn = torch.sign

def loss(output, target):
    return (output - target[:, :2]).square().mean()

def evaluate():
    return model(x)
"""
}
"""What a page takes to be there: names of its reader's own. It need not say what is printed."""


TRAINERS = {
    "trainers/transformers.md": ("transformers", "accelerate"),
    "trainers/lightning.md": ("lightning",),
    "trainers/accelerate.md": ("accelerate",),
    "trainers/loop.md": (),  # torch warns that its checkpoint is that of one process
}
"""What the pages of trainers need; the trainers print, and warn, as they like."""


class Block(NamedTuple):
    """What a page shows between two fences."""

    language: str
    file: str | None
    code: str
    text: str
    """The block of text right after it, "" without."""


def blocks(page: str) -> list[Block]:
    found = []
    fences = list(FENCE.finditer(page))
    for fence, after in zip(fences, [*fences[1:], None], strict=True):
        text = ""
        if after and after["directive"] == "text" and not page[fence.end() : after.start()].strip():
            text = after["code"]
        language = fence["argument" if fence["directive"] == "{code-block}" else "directive"]
        found.append(Block(language, fence["file"], dedent(fence["code"]), text))
    return found


def commands(console: str) -> list[tuple[str, str]]:
    """Every command, and what it is said to print."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [(command, text) for command, _, text in (part.partition("\n") for part in parts)]


def run(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "hookstats":
        result = call(*arguments)
        assert result.err == ""
        return result.out
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [program, *arguments],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(printed: str, shown: str) -> None:
    assert shape(printed) == shape(shown), printed
    assert numbers(printed) == pytest.approx(numbers(shown), rel=2e-2, abs=2e-3), printed


def marked(page: str) -> Any:
    marks = [pytest.mark.filterwarnings("default")] if page in TRAINERS else []
    return pytest.param(page, marks=marks)


@pytest.mark.check
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", [marked(str(page.relative_to(DOCS))) for page in PAGES])
def test_what_a_page_shows_is_what_happens(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in TRAINERS.get(page, ()):
        pytest.importorskip(module)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(SETUP.get(page, ""), names)
    for block in blocks((DOCS / page).read_text("utf-8")):
        if block.file is not None:
            Path(block.file).write_text(block.code, "utf-8")
        elif block.language == "python":
            exec(compile(block.code, page, "exec"), names)
            printed = capsys.readouterr().out
            if block.text or page not in (*SETUP, *TRAINERS):
                check(printed, block.text)
        elif block.language == "console":
            for command, text in commands(block.code):
                check(run(command), text)


@pytest.mark.parametrize("module", [hookstats, insight, rules, sinks], ids=lambda m: m.__name__)
def test_every_public_name_has_its_place_in_the_api_pages(module: object) -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = re.findall(r"^\.\. auto\w+:: (?:\w+\.)*(\w+)$", pages, re.MULTILINE)
    public = set(module.__all__) - {"__version__"}
    assert public <= set(documented), public - set(documented)


def test_every_test_that_the_page_on_reliability_names_is_there() -> None:
    text = (DOCS / "reliability.md").read_text("utf-8")
    named = re.findall(r"`([a-z]+/test_\w+\.(?:py|cpp))(?:::(\w+))?[^`]*`", text)
    assert len(named) > 20
    for file, test in named:
        content = (ROOT / "tests" / file).read_text("utf-8")
        assert f"def {test}(" in content or not test, f"{file}::{test}"


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


SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_the_guides_name_every_script() -> None:
    guides = (page.read_text("utf-8") for page in (ROOT / "docs" / "guides").glob("*.md"))
    named = (re.findall(r"examples/(\w+\.py)|^\|.*`(\w+\.py)`", page, re.M) for page in guides)
    assert sorted({name for page in named for pair in page for name in pair if name}) == SCRIPTS


@pytest.mark.check
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error::RuntimeWarning"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.check
def test_the_notebook_shows_what_it_did_when_it_was_saved(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient, from a checkout's dev")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, from a checkout's dev")
    pytest.importorskip("ipykernel", reason="needs ipykernel, from a checkout's dev")
    saved = nbformat.read(ROOT / "examples" / "notebook.ipynb", 4)
    kinds = [shown(cell) for cell in saved.cells]
    assert {"text/html", "image/png"} <= set().union(*kinds)
    nbclient.NotebookClient(
        saved, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [shown(cell) for cell in saved.cells] == kinds


def shown(cell: Any) -> set[str]:
    """The kinds of what a cell of a notebook shows."""
    return {kind for output in cell.get("outputs", ()) for kind in output.get("data", ())}


_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


_NUMBER_OR_ZERO = re.compile(rf"{_NUMBER.pattern}|(?<=  )0(?= )")
"""Where one processor's mean is 0, another's may be rounding."""


def shape(text: str) -> str:
    """The text without its decimals, and without the spaces that their widths bring about."""
    return "".join(_NUMBER_OR_ZERO.sub("#", text).split())
