"""The pictures and numbers that each panel of a page saves, by a real browser."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.browser import screen
from support.opened import Page
from torch import nn

import hookstats as hs
from hookstats.records.keys import label

Image = pytest.importorskip("PIL.Image", reason="needs pillow")

pytestmark = pytest.mark.check

PAD, HEAD = 12, 30  # pixels around what a picture shows, and of its title
MOST = 400  # pixels of a row that are compared
STEPS, NAN_FROM = 12, 9
WORDS = {
    "alerts": "alert-list",
    "detail": "tiles",
    "worst": "worst-tables",
    "coverage": "coverage-body",
    "about": "facts",
}
"""The panels of words, and what of each is in its picture."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hs.Run:
    """A training with dead channels, a module that is never called, and NaNs at its end."""
    out = tmp_path_factory.mktemp("runs") / "net"
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        model[0].bias[:3] = -100.0
    model.add_module("unused", nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.01)
    with hs.watch(model, optimizer, out=out) as watch:
        for step in range(STEPS):
            x = torch.randn(16, 6)
            if step >= NAN_FROM:
                x[0] = torch.nan
            optimizer.zero_grad()
            loss = model[:3](x).square().mean()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
    return hs.open_run(out)


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    screen(browser, 1280, 2400, dark=request.param == "dark")
    page = Page(browser, path)
    yield page
    assert browser.get_log("browser") == []


def saved(page: Page, panel: str, tool: str) -> bytes:
    """What a tool of a panel saves."""
    page.script(
        """
        const [panel, tool] = arguments;
        const make = URL.createObjectURL;
        window.saved = null;
        URL.createObjectURL = (blob) => {
          const reader = new FileReader();
          reader.onload = () => { window.saved = reader.result.split(",")[1]; };
          reader.readAsDataURL(blob);
          URL.createObjectURL = make;
          return make(blob);
        };
        const tools = [...document.querySelectorAll(`[data-tools=${panel}] .tool`)];
        tools.find((one) => one.textContent === tool).click();
        """,
        panel,
        tool,
    )
    page.wait(lambda: page.script("return window.saved") is not None)
    return base64.b64decode(page.script("return window.saved"))


def pixels(png: bytes) -> NDArray[np.float64]:
    """[height, width, 3]: red, green and blue, 0 to 255."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), np.float64)


def contents(page: Page, panel: str) -> NDArray[np.float64]:
    """The picture of a panel, without its title."""
    return pixels(saved(page, panel, "PNG"))[PAD + HEAD : -PAD, PAD:-PAD]


def unlike(found: NDArray[np.float64], shown: NDArray[np.float64]) -> float:
    """How much of what is `shown` on its paper is not `found`, which begins somewhere near; 1 where
    there is nothing."""
    paper = np.median(shown, axis=(0, 1))
    ink, drawn = ((image - paper)[:, :MOST].mean(2) for image in (shown, found))
    around = np.pad(ink, ((4, 24), (4, 24)))
    height, width = drawn.shape

    def at(y: int, x: int) -> float:
        part = around[y : y + height, x : x + width]
        return float(np.abs(drawn[: part.shape[0], : part.shape[1]] - part).sum())

    return min(at(y, x) for y in range(24) for x in range(16)) / float(np.abs(ink).sum())


@pytest.mark.parametrize("panel", WORDS)
def test_a_picture_of_words_is_what_stands_on_the_page(page: Page, panel: str) -> None:
    if panel == "worst":
        page["tab-worst"].click()
    # A picture has all that scrolls.
    page.script(
        """
        const those = "#alerts, #alerts > .card, #alert-list, .scroll";
        for (const one of document.querySelectorAll(those)) {
          one.style.cssText = "contain: none; overflow: visible; max-height: none";
        }
        """
    )
    shown = pixels(page[WORDS[panel]].screenshot_as_png)
    found = contents(page, panel)
    assert unlike(found, shown) < 0.35
    assert unlike(found[:, ::-1], shown) > 0.7


def test_what_scrolls_and_what_is_unfolded_is_in_the_picture(page: Page) -> None:
    folded = len(contents(page, "alerts"))
    page.script("document.querySelector('#alert-list details').open = true")
    whole = page.script("return document.querySelector('#alert-list ol').scrollHeight")
    page.script("document.getElementById('alerts').style.height = '90px'")
    unfolded = len(contents(page, "alerts"))
    assert folded + 50 < unfolded
    assert unfolded == pytest.approx(whole, abs=40)


def test_the_heatmaps_picture_has_its_scale(page: Page) -> None:
    """The colours, from the least to the greatest, and what the others stand for."""
    found = contents(page, "overview")
    shown = pixels(page["legend"].screenshot_as_png)
    assert unlike(found[: len(shown)], shown) < 0.35


def test_every_panel_saves_a_picture_and_numbers(page: Page, run: hs.Run) -> None:
    panels = page.script(
        "return [...document.querySelectorAll('[data-tools]')].map((x) => x.dataset.tools)"
    )
    assert {*panels} >= {"overview", "histogram", "quantiles", "channels", "flow", *WORDS}
    for panel in panels:
        tabs = page.all(f"#tab-{panel}")
        for tab in tabs:
            tab.click()
        assert pixels(saved(page, panel, "PNG")).std() > 1
        header, *rows = csv.reader(io.StringIO(saved(page, panel, "CSV").decode()))
        assert rows
        assert {len(row) for row in rows} == {len(header)}


def test_numbers_of_a_layer_are_those_of_its_tiles_in_every_step(page: Page, run: hs.Run) -> None:
    page.kind("output")
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    header, *rows = csv.reader(io.StringIO(saved(page, "detail", "CSV").decode()))
    assert [row[0] for row in rows] == [f"step {step}" for step in range(STEPS)]
    for step, row in enumerate(rows):
        numbers = dict(zip(header[1:], (float(cell or "nan") for cell in row[1:]), strict=True))
        whole = run[step][page.chosen[0], "output"].per_tensor()
        for name in ("rms", "mean", "std", "min", "max"):
            expected = float(getattr(whole, name)) if int(whole.count) else torch.nan
            assert numbers[name] == pytest.approx(expected, rel=0.01, nan_ok=True)
        exact = {
            "NaNs": whole.nan,
            "finite values": whole.count,
            "positive infinities": whole.posinf,
        }
        assert {name: numbers[name] for name in exact} == {k: int(n) for k, n in exact.items()}


def test_numbers_of_incidents_and_of_coverage_are_the_runs(page: Page, run: hs.Run) -> None:
    header, *rows = csv.reader(io.StringIO(saved(page, "alerts", "CSV").decode()))
    assert header[1:4] == ["severity", "rule", "step"]
    assert sorted((row[2], int(row[3])) for row in rows) == sorted(
        (alert.rule, alert.step) for alert in run.alerts
    )
    _, *rows = csv.reader(io.StringIO(saved(page, "coverage", "CSV").decode()))
    assert run.coverage is not None
    known = {(label(row["name"]), row["kind"]): row for row in run.coverage["rows"]}
    assert len(rows) == len(known)
    for name, kind, calls, observed, missing, *_ in rows:
        of_it = known[name, kind]
        assert [int(calls), int(observed), int(missing)] == [
            of_it["forwards"],
            of_it["observed"],
            of_it["missing"],
        ]
