"""What notebooks show: HTML without scripts, with the numbers of the record, safely escaped."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.samples import BINS, record_of, sample

import hookstats as hs
from hookstats.runs.writer import RunWriter
from hookstats.show.palette import SEQUENTIAL, shades
from hookstats.show.png import png

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


def pixels(text: str) -> np.ndarray:
    """The picture in a fragment, uint8 [height, width, 4]."""
    (source,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    read = matplotlib.image.imread(io.BytesIO(base64.b64decode(source)))
    return (read * 255).round().astype(np.uint8)


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


def test_a_run_shows_its_layers(run: hs.Run) -> None:
    text = run._repr_html_()
    assert Reader(text).tags <= {"div", "b", "img"}
    assert "5 (0 to 4)" in text
    picture = pixels(text)
    assert picture.shape[:2] == (2, 5)
    red = (picture[..., :3] == [0xE0, 0x10, 0x3F]).all(-1)
    assert red.tolist() == [[False] * 5, [False, False, True, True, True]]
    assert (picture[..., 3] == 255).all()


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
    picture = pixels(site._repr_html_())
    assert picture.shape[:2] == (48, 5)
    filled = picture[..., 3] > 0
    assert filled.any(0).all()
    # Columns are upright: their highest filled rows are in the order of the greatest values.
    top = filled.argmax(0)
    assert (np.diff(top[np.argsort(site.max)]) <= 0).all()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_png_is_read_by_others(height: int, width: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 5, (height, width)).astype(np.uint8)
    colours = np.hstack((shades(SEQUENTIAL, 5), [[255]] * 4 + [[0]])).astype(np.uint8)
    read = pixels(f'src="{png(codes, colours)}"')
    np.testing.assert_array_equal(read, colours[codes])
