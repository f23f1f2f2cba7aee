"""What notebooks show: HTML without scripts, with the numbers of the record, safely escaped."""

from __future__ import annotations

import base64
import html
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from support.commands import healthy, write_run
from support.samples import BINS, record_of, sample

import hookstats as hs
from hookstats.records.alerts import worst
from hookstats.records.display import view_of
from hookstats.rules import advice_of
from hookstats.runs.writer import RunWriter
from hookstats.show.plot import draw_histogram

NAME = "<script>alert(1)</script>"


class Reader(HTMLParser):
    """Checks that tags are closed in order; gathers the texts of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "img":
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def picture(text: str) -> np.ndarray:
    """The picture in a fragment, float32 [height, width, 4]."""
    (source,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(source)))


def drawn(figure: Figure) -> np.ndarray:
    """The same of a figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return matplotlib.image.imread(io.BytesIO(file.getvalue()))


@pytest.fixture
def run(tmp_path: Path) -> hs.Run:
    writer = RunWriter(tmp_path, {"bins": BINS, "channel_bins": None, "model": NAME})
    for step in range(5):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        bad = torch.where(torch.arange(8) == step - 2, torch.nan, x[:, 0])
        data = {("a", "output"): (x, 1), (NAME, "output"): (bad, None)}
        writer.write(record_of(data, step, channel_bins=None))
    writer.close()
    return hs.open_run(tmp_path)


def test_a_run_shows_the_heatmap_of_its_outputs(run: hs.Run) -> None:
    text = run._repr_html_()
    assert Reader(text).tags <= {"div", "b", "img"}
    assert "5 (0 to 4)" in text
    np.testing.assert_array_equal(picture(text), drawn(run.plot.heatmap("rms", "output")))


def test_a_run_without_outputs_shows_its_first_kind(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": None, "channel_bins": None})
    writer.write(record_of({("a", "input"): (torch.ones(2), None)}, bins=None, channel_bins=None))
    writer.close()
    assert "rms of every input" in hs.open_run(tmp_path)._repr_html_()


def test_without_matplotlib_the_words_stay(run: hs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = run._repr_html_()
    assert "5 (0 to 4)" in text
    assert "pip install matplotlib" in text
    assert "img" not in Reader(text).tags


@pytest.mark.check
def test_classes_show_themselves_however_they_were_imported(tmp_path: Path) -> None:
    """Nothing but the module that defines a class has to be imported."""
    run = write_run(tmp_path / "run", healthy(0))
    code = (
        "import sys\n"
        "from hookstats.runs.run import Run\n"
        "assert not any(name.startswith('hookstats.show') for name in sys.modules)\n"
        "run = Run(sys.argv[1])\n"
        "for shown in (run, run[0], run['*', 'output'], run['head', 'output']['head', 'output']):\n"
        "    assert shown._repr_html_().startswith('<div')\n"
        "assert type(run.plot).__name__ == 'Plots'\n"
    )
    subprocess.run([sys.executable, "-c", code, run], check=True, timeout=120)


def test_a_view_that_nothing_gives_is_named(run: hs.Run) -> None:
    with pytest.raises(LookupError, match="view = 'video': no such view of Run"):
        view_of(run, "video")


def test_a_run_says_what_went_wrong(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with hs.watch(model, out=tmp_path, rules=hs.rules.NonFinite(action=lambda alert: None)) as w:
        model(torch.full((1, 2), torch.inf))
        w.step()
    text = hs.open_run(tmp_path)._repr_html_()
    (incident,) = hs.open_run(tmp_path).incidents
    assert html.escape(f"error: {incident}") in text


def test_a_run_writes_its_report(run: hs.Run, tmp_path: Path) -> None:
    beside = run.report()
    assert beside == run.path.with_name(f"{run.path.name}.html")
    assert beside.read_text("utf-8").startswith("<!doctype html>")
    there = run.report(tmp_path / "there.html")
    assert there.read_text("utf-8") == beside.read_text("utf-8")
    last = run.report(tmp_path / "last.html", steps=(run.steps[-1], None))
    assert last.read_text("utf-8") != there.read_text("utf-8")
    both = run.report(other=run)
    assert both.name == f"{run.path.name}-{run.path.name}.html"
    with pytest.raises(ValueError, match="expected some of the steps"):
        run.report(steps=(run.steps[-1] + 1, None))
    RunWriter(tmp_path / "empty", {"bins": None, "channel_bins": None}).close()
    with pytest.raises(ValueError, match="expected a run with steps"):
        hs.open_run(tmp_path / "empty").report()


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    RunWriter(tmp_path, {"bins": None, "channel_bins": None}).close()
    assert "steps: none yet" in hs.open_run(tmp_path)._repr_html_()


def test_a_step_is_a_table(run: hs.Run) -> None:
    reader = Reader(run[1]._repr_html_())
    assert "script" not in reader.tags
    stats = run[1]["a", "output"].per_tensor()
    row = ["a", "output", "8 x 4", *(f"{float(x):.3g}" for x in (stats.mean, stats.std))]
    assert reader.cells[:5] == row
    assert reader.cells[9] == NAME


def test_odd_sites_and_long_tables_are_shown() -> None:
    Reader(sample()._repr_html_())
    many = {(f"layer{i}", "output"): (torch.ones(2), None) for i in range(50)}
    text = record_of(many)._repr_html_()
    assert len(Reader(text).cells) == 40 * 9
    assert "and 10 more" in text


def test_series_have_lines(run: hs.Run) -> None:
    text = run["*", "output"]._repr_html_()
    assert Reader(text).tags >= {"svg", "polyline"}
    assert text.count("<polyline") == 2


def test_a_site_shows_its_histogram(run: hs.Run) -> None:
    site = run["a", "output"]["a", "output"]
    np.testing.assert_array_equal(picture(site._repr_html_()), drawn(draw_histogram(site)))


def test_a_site_without_histograms_or_values_has_no_picture(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": BINS, "channel_bins": None})
    x = torch.full((4,), torch.nan)
    writer.write(record_of({("a", "output"): (x, None)}, channel_bins=None))
    writer.close()
    site = hs.open_run(tmp_path)["a", "output"]["a", "output"]
    assert "img" not in Reader(site._repr_html_()).tags


def trained(out: Path, gain: float = 1.0) -> hs.Watch:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model.add_module("unused", torch.nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.mul_(gain)
    optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.1)
    with hs.watch(model, optimizer, out=out) as watch:
        for _ in range(3):
            model[:3](torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch


def test_incidents_differences_and_coverage_are_tables(tmp_path: Path) -> None:
    watch = trained(tmp_path / "a", gain=40.0)
    trained(tmp_path / "b")
    run = hs.open_run(tmp_path / "a")
    incidents = Reader(run.incidents._repr_html_())
    first = worst(run.incidents)[0].cause
    assert [first.rule, str(first.step)] == incidents.cells[1:3]
    assert advice_of(first) in incidents.cells
    assert not watch.incidents[:0]

    found = hs.compare(tmp_path / "a", tmp_path / "b")
    assert Reader(found._repr_html_()).cells[0] == found.sites[0].name
    same = hs.compare(tmp_path / "b", tmp_path / "b")
    assert "are equal" in same._repr_html_()

    cells = Reader(watch.coverage()._repr_html_()).cells
    assert "unused" in cells
    assert "never called" in cells


def test_no_incidents_are_none(tmp_path: Path) -> None:
    write_run(tmp_path / "run", healthy(0))
    assert "none" in hs.open_run(tmp_path / "run").incidents._repr_html_()
