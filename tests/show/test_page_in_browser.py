"""The report's page in a real browser: what it shows, by mouse, by keys, offline."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.browser import requests, screen
from support.opened import Page, number, open_page
from support.samples import BINS, record_of
from torch import nn

import hookstats as hs
from hookstats.records.alerts import incidents_of, worst
from hookstats.runs.writer import RunWriter
from hookstats.show import page as report

STEPS, NAN_FROM = 30, 24

pytestmark = pytest.mark.check

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Net(nn.Module):
    """Dead channels after the second layer, a name that would be a tag, and a layer that is only
    called in even steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.relu = nn.ReLU()
        self.add_module(HOSTILE, nn.Linear(8, 4))
        self.sometimes = nn.Tanh()
        assert self.first.bias is not None
        with torch.no_grad():
            self.first.bias[:3] = -100.0

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        out: torch.Tensor = self.get_submodule(HOSTILE)(self.relu(self.first(x)))
        return out if step % 2 else self.sometimes(out)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hs.Run:
    """A training whose input is not a number from step 24 on."""
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("runs") / "net"
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, optimizer, kinds=("output", "grad_output", "param"), out=out) as w:
        for step in range(STEPS):
            x = torch.randn(16, 6)
            if step >= NAN_FROM:
                x[0] = torch.nan
            optimizer.zero_grad()
            loss = model(x, step).square().mean()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad = torch.nan_to_num(parameter.grad)
            optimizer.step()
            w.log(loss=loss)
    return hs.open_run(out)


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Page]:
    """The page on a laptop's screen; it must not complain, nor ask for anything."""
    screen(browser, 1280, 800)
    page = Page(browser, path)
    yield page
    assert browser.get_log("browser") == []
    assert requests(browser) == [path.as_uri()]


def test_numbers_are_those_of_the_run(page: Page, run: hs.Run) -> None:
    page.press(page.heatmap, page.keys.HOME)
    for kind in ("output", "grad_output"):
        page.kind(kind)
        page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
        for name in ("first", "relu", HOSTILE):
            for step in (0, 1, 2):
                stats = run[step][name, kind].per_tensor()
                tiles = page.tiles()
                assert page.chosen == (name, f"step {step}")
                for label in ("rms", "mean", "std", "min", "max"):
                    expected = float(getattr(stats, label))
                    assert number(tiles[label]) == pytest.approx(expected, rel=0.01)
                page.press(page.heatmap, page.keys.ARROW_RIGHT)
            page.press(page.heatmap, page.keys.HOME, page.keys.ARROW_DOWN)


def test_what_is_chosen_before_everything_is_there_is_shown_then(browser: Any, path: Path) -> None:
    at_once = """
        const press = () => {
          const heatmap = document.getElementById("heatmap");
          const key = { key: "Home", ctrlKey: true, bubbles: true };
          heatmap.dispatchEvent(new KeyboardEvent("keydown", key));
          window.early = [document.getElementById("tiles").children.length, main.dataset.whole];
        };
        new MutationObserver((changes, self) => {
          const main = document.getElementById("main");
          if (main?.dataset.first === undefined) return;
          self.disconnect();
          press();
        }).observe(document, { subtree: true, attributes: true, childList: true });
    """
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": at_once})
    try:
        page = Page(browser, path)
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert page.script("return window.early") == [0, None]  # the heatmap comes first
    assert page.chosen[1] == "step 0"
    assert page["readout"].text.split()[2:4] == ["step", "0"]
    assert len(page.tiles()) == 9
    assert browser.get_log("browser") == []


def test_keys_move_and_stop_at_the_ends(page: Page) -> None:
    keys, heatmap = page.keys, page.heatmap
    page.press(heatmap, keys.CONTROL, keys.HOME)
    assert page.chosen == ("first", "step 0")
    page.press(heatmap, keys.ARROW_UP, keys.ARROW_LEFT)
    assert page.chosen == ("first", "step 0")
    page.press(heatmap, keys.ARROW_DOWN, keys.ARROW_RIGHT)
    assert page.chosen == ("relu", "step 1")
    page.press(heatmap, keys.END, keys.PAGE_DOWN)
    assert page.chosen == ("sometimes", "step 29")
    assert page["readout"].text.endswith("not recorded")
    page.press(heatmap, keys.ARROW_UP)
    assert page.chosen == (HOSTILE, "step 29")
    assert "not finite" in page["live"].get_attribute("textContent")
    page.press(heatmap, keys.ENTER)
    assert page.browser.switch_to.active_element.get_attribute("id") == "detail"
    chart = page["quantiles"]
    page.press(chart, keys.ARROW_LEFT)
    assert page.chosen == (HOSTILE, "step 28")
    assert chart.get_attribute("aria-valuenow") == "28"
    assert chart.get_attribute("aria-valuetext") == "step 28"


def test_what_has_the_focus_is_seen(page: Page) -> None:
    page.script("document.activeElement.blur()")
    body, seen = page.all("body")[0], []
    for _ in range(40):
        body.send_keys(page.keys.TAB)
        seen.append(
            page.script(
                """
                const node = document.activeElement;
                const ring = node.type === "radio" ? node.parentElement : node;
                const name = node.getAttribute("aria-label") || node.labels?.[0]?.textContent
                  || node.textContent;
                return [node.id || node.className || node.name || node.tagName, name.trim(),
                        getComputedStyle(ring).outlineStyle];
                """
            )
        )
    reached = {name for name, *_ in seen}
    assert {"theme", "kind", "statistic", "heatmap", "alert", "histogram", "channels"} <= reached
    for name, label, outline in seen:
        if name != "BODY":
            assert label, f"{name} has no name"
            assert outline != "none", f"{name}: the focus is not seen"


def test_a_click_chooses_a_layer_and_a_step(page: Page) -> None:
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    canvas = page.all("#heatmap canvas")[0]
    page.click(canvas, 0.999, 1.5 / 4)
    assert page.chosen == ("relu", "step 29")
    page.click(canvas, 0.01, 2.5 / 4)  # a label: the step stays
    assert page.chosen == (HOSTILE, "step 29")
    page.click(page["histogram"], 0.3, 0.5)
    name, when = page.chosen
    assert name == HOSTILE
    assert 0 < int(when.removeprefix("step ")) < 29
    page["earlier"].click()
    assert page.chosen[1] == f"step {int(when.removeprefix('step ')) - 1}"


def test_what_was_logged_stands_above_the_heatmap(page: Page, run: hs.Run) -> None:
    loss = run.scalars["loss"].values
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    logged = page["logged"].text.split(" \u00b7 ")
    assert logged[1] == "learning rate 0.01"
    assert number(logged[0].removeprefix("loss ")) == pytest.approx(loss[0], rel=0.01)
    curves = page["curves"]
    page.click(curves, 0.99, 0.5)
    assert page.chosen[1] == f"step {STEPS - 1}"
    assert page["logged"].text.startswith("loss NaN")
    red = [int(c, 16) for c in ("e0", "10", "3f")]
    assert page.pixel("#curves", 0.97, 0.2)[:3] == red  # not finite
    assert page.pixel("#curves", 0.97, 0.7)[:3] != red
    # The columns are those of the heatmap.
    box, below = curves.rect, page.all("#heatmap canvas")[0].rect
    assert (box["x"], box["width"]) == (below["x"], below["width"])
    assert box["y"] + box["height"] <= below["y"]


def test_not_finite_zero_and_missing_are_told_from_values(page: Page) -> None:
    rows = 4

    def colour(name: str) -> tuple[int, ...]:
        text = page.script(
            "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", name
        )
        return (*bytes.fromhex(text.strip().removeprefix("#")), 255)

    def shown(row: int, x: float) -> set[tuple[int, ...]]:
        """The colours around a place in a row: a hatch has several."""
        places = ((x + dx, (row + dy) / rows) for dx in (0, 0.001, 0.002) for dy in (0.4, 0.5, 0.6))
        return {tuple(page.pixel("#heatmap canvas", *place)) for place in places}

    page.choose("rms")  # the incident showed the share of what is not finite
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    value, bad = shown(0, 0.5), shown(0, 0.97)
    assert len(value) == 1  # no hatch
    assert colour("--nonfinite") in bad
    assert colour("--nonfinite") not in value
    page.choose("dead")
    assert shown(0, 0.5) == {colour("--soft")}  # none is pale
    (share,) = shown(1, 0.5)
    assert share != colour("--soft")
    assert page["readout"].text.endswith("share of dead channels 0 %")
    page.press(page.heatmap, page.keys.ARROW_DOWN)
    assert page["readout"].text.endswith("3 of 8 channels dead")
    missing = [shown(3, 0.97), shown(3, 0.94)]
    assert any(any(pixel[3] < 255 for pixel in cell) for cell in missing)  # the card shows through


def test_a_gradient_that_does_not_come_is_told_from_what_was_not_recorded(
    browser: Any, tmp_path: Path
) -> None:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None})
    for step in range(6):
        kinds = [("a", "output"), ("a", "grad_output"), ("b", "output"), ("b", "grad_output")]
        gone = {3: [("b", "grad_output")], 4: kinds[2:], 5: kinds[1::2]}.get(step, [])
        tensors = {key: (torch.ones(4, 2), 1) for key in kinds if key not in gone}
        writer.write(record_of(tensors, step, channel_bins=None))
    writer.close()
    screen(browser, 1280, 800)
    page = Page(browser, report.write(hs.open_run(tmp_path / "run"), tmp_path / "page.html"))
    page.kind("grad_output")
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    page.press(page.heatmap, page.keys.ARROW_DOWN, *[page.keys.ARROW_RIGHT] * 3)
    assert page["legend"].text == "not recorded\nno gradient"
    said = []
    for _ in range(3):  # in the last steps the layer, and then the backward, did not run
        said.append(
            (page["readout"].text.rpartition(" \u00b7 ")[2], page.tiles().get("grad_output"))
        )
        page.press(page.heatmap, page.keys.ARROW_RIGHT)
    missing = "not recorded"
    assert said == [("no gradient came",) * 2, (missing, missing), (missing, missing)]


def test_an_alert_leads_to_its_layer_and_step(page: Page, run: hs.Run) -> None:
    from hookstats.rules import advice_of, replay

    alerts = replay(run)
    page.script("document.querySelectorAll('#alert-list details').forEach((d) => d.open = true)")
    buttons = page.all("#alert-list button")
    assert len(buttons) == len(alerts)
    first, *_ = worst(incidents_of(alerts))
    assert "non-finite" in {alert.rule for alert in first.alerts}
    cause = first.cause.site, f"step {first.cause.since}"
    assert page.chosen == cause  # shown first
    assert f"What helps: {advice_of(first.cause)}" in buttons[0].text
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    buttons[0].click()
    assert page.chosen == cause
    assert buttons[0].get_attribute("aria-current") == "true"
    page.press(page.heatmap, "n")
    assert buttons[1 % len(buttons)].get_attribute("aria-current") == "true"


def test_another_kind_stays_with_the_layer(page: Page) -> None:
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    page.kind("param")
    assert page.chosen[0] == "first.weight"
    page.kind("output")
    assert page.chosen[0] == "first"


def test_against_the_median_is_for_magnitudes(page: Page) -> None:
    page.kind("output")
    page.choose("amax")  # no longer the scale of the alert that was shown first
    page.choose("rms")  # the layers differ by more than a decade
    assert page["relative"].is_selected()
    assert "\u00d7" in page.all("#legend canvas")[0].get_attribute("aria-label")
    page["relative"].click()
    assert "\u00d7" not in page.all("#legend canvas")[0].get_attribute("aria-label")
    page["relative"].click()
    assert "\u00d7" in page.all("#legend canvas")[0].get_attribute("aria-label")
    page.choose("mean")
    assert not page["relative"].is_enabled()


def test_it_follows_the_preferred_colours_and_the_button(browser: Any, path: Path) -> None:
    def background() -> str:
        found: str = browser.execute_script(
            "return getComputedStyle(document.body).backgroundColor"
        )
        return found

    screen(browser, 1280, 800, dark=True)
    page = Page(browser, path)
    assert page.browser.find_element("css selector", "html").get_attribute("data-theme") == "dark"
    dark = background()
    page["theme"].click()
    light = background()
    assert light != dark
    assert page["theme"].get_attribute("aria-label") == "Switch to the dark theme"
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_is_wider_than_the_screen(browser: Any, path: Path, width: int) -> None:
    screen(browser, width, 844, phone=width < 600)
    page = Page(browser, path)
    assert page.script("return document.documentElement.scrollWidth") <= width
    for name in ("overview", "alerts", "detail", "coverage", "about"):
        box = page[name].rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["height"] > 40
    bottom = max(page[name].rect["y"] + page[name].rect["height"] for name in ("coverage", "about"))
    assert page.script("return document.documentElement.scrollHeight") < bottom + 100


def test_two_runs_beside_each_other(browser: Any, run: hs.Run, tmp_path: Path) -> None:
    screen(browser, 1280, 800)
    page = Page(browser, report.write(run, tmp_path / "page.html", other=run))
    page.choose("rms")  # the incident showed one run, and another statistic
    page.script("document.querySelector('#beside [value=ratio]').click()")
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    assert page["readout"].text.endswith("rms, B \u00f7 A \u00d71")
    tiles = page.all("#tiles > div")[0].text.split("\n")
    assert tiles[0] == "rms"
    assert tiles[2] == f"B {tiles[1]}"
    page.script("document.querySelector('#beside [value=b]').click()")
    expected = float(run[0]["first", "output"].per_tensor().rms)
    shown = page["readout"].text.rpartition("rms ")[2].split()[0]
    assert number(shown) == pytest.approx(expected, rel=0.01)
    assert "beside=b" in page.link
    assert browser.get_log("browser") == []


def test_a_link_restores_the_view(browser: Any, path: Path) -> None:
    screen(browser, 1280, 800)
    page = Page(browser, path)
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    page.choose("amax")
    page.press(page.heatmap, page.keys.ARROW_DOWN, *[page.keys.ARROW_RIGHT] * 7, "p", "z")
    page["tab-flow"].click()
    link, said = page.link, page["readout"].text
    assert "layer=relu&kind=output&step=7&stat=amax" in link
    browser.get("about:blank")
    again = Page(browser, Path(path))
    browser.get("about:blank")
    open_page(browser, link)
    assert again["readout"].text == said
    assert again.chosen == ("relu", "step 7")
    assert again["tab-flow"].get_attribute("aria-selected") == "true"
    assert again["pin"].get_attribute("aria-pressed") == "true"
    assert again["zoomed"].text == "steps 0\u201314"
    again.press(again.heatmap, "0")
    assert not again["unzoom"].is_displayed()


def test_a_drag_over_the_steps_zooms_and_a_double_click_goes_back(page: Page) -> None:
    from selenium.webdriver import ActionChains

    axis = page["heatmap-axis"]
    wide = axis.rect["width"]
    start = ActionChains(page.browser).move_to_element_with_offset(axis, 0, 0)
    start.click_and_hold().move_by_offset(round(wide * 0.2), 0).release().perform()
    first, last = (int(n) for n in page["zoomed"].text.removeprefix("steps ").split("\u2013"))
    assert 0 < first < last < STEPS
    page.click(page.all("#heatmap canvas")[0], 0.999, 0.1)
    assert page.chosen[1] == f"step {last}"
    ActionChains(page.browser).double_click(axis).perform()
    assert not page["unzoom"].is_displayed()


def test_numbers_are_saved_as_they_are_shown(page: Page, run: hs.Run) -> None:
    page.choose("rms")
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    page.script(
        """
        window.saved = [];
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => {
          blob.text().then((text) => window.saved.push([blob.type, text]));
          return make(blob);
        };
        document.querySelectorAll("[data-tools=overview] .menu button")[1].click();
        document.querySelectorAll("[data-tools=overview] .menu button")[0].click();
        """
    )
    page.wait(lambda: page.script("return window.saved.length") == 2)
    saved = dict(page.script("return window.saved"))
    assert "PNG" in saved["image/png"][:8]
    header, *rows = csv.reader(io.StringIO(saved["text/csv"]))
    assert header[:4] == ["layer", "kind", "statistic", "step 0"]
    assert [row[0] for row in rows] == ["first", "relu", HOSTILE, "sometimes", "loss", "lr/0"]
    expected = [float(run[step]["first", "output"].per_tensor().rms) for step in range(STEPS)]
    assert [float(x) for x in rows[0][3:]] == pytest.approx(expected, rel=0.01)
    logged = run.scalars["loss"].values.tolist()
    assert [float(x or "nan") for x in rows[4][3:]] == pytest.approx(logged, rel=1e-5, nan_ok=True)


def test_a_card_has_one_menu_that_closes_behind_its_reader(page: Page) -> None:
    (opener,) = page.all("[data-tools=overview] summary")
    picture = page.all("[data-tools=overview] .menu button")[0]
    opener.click()
    assert picture.is_displayed()
    page.press(opener, page.keys.ESCAPE)
    assert not picture.is_displayed()
    opener.click()
    page["overview-title"].click()
    assert not picture.is_displayed()


def test_logged_curves_are_smoothed_and_drawn_on_a_log_scale(page: Page) -> None:
    drawn = "return document.getElementById('curves').toDataURL()"
    seen = [page.script(drawn)]
    for name in ("smooth", "log"):
        page[name].click()
        assert page[name].get_attribute("aria-pressed") == "true"
        seen.append(page.script(drawn))
        page[name].click()
        assert page.script(drawn) == seen[0]
    assert len(set(seen)) == 3


def test_ridges_have_the_axis_of_values_alone(page: Page) -> None:
    """A click on them chooses no step, as it would on the other charts."""
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    histogram = page["histogram"]
    page.click(histogram, 0.5, 0.5)
    assert page.chosen[1] != "step 0"
    page.press(page.heatmap, page.keys.HOME)
    page["ridges"].click()
    page.click(histogram, 0.5, 0.5)
    assert page.chosen[1] == "step 0"
    page["ridges"].click()


def test_layers_are_found_by_their_type(page: Page) -> None:
    page.press(page["search"], "tanh")
    assert page.all("#heatmap canvas")[0].get_attribute("data-rows") == "1"
    page["search"].clear()


def test_coverage_says_what_was_missed(browser: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.add_module("unused", nn.Linear(2, 2))
    watch = hs.watch(model, out=tmp_path / "run")
    for _ in range(2):
        model[1](model[0](torch.randn(4, 3)))  # no backward: gradients are missing
        watch.step()
    open_run = hs.open_run(tmp_path / "run")
    watch.close()
    screen(browser, 1280, 800)
    page = Page(browser, report.write(open_run, tmp_path / "page.html"))
    said = page["coverage"].text
    assert "0 grad_output 2 0 2" in said
    assert "3 tensors of modules that were never called" in said
    assert page["alerts"].text.startswith("Alerts")


def test_a_run_that_is_not_closed_says_so(browser: Any, tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    with hs.watch(model, kinds=("output",), out=tmp_path / "run") as watch:
        model(torch.randn(4, 3))
        watch.step()
        watch._recorder.drain()
        path = report.write(hs.open_run(tmp_path / "run"), tmp_path / "page.html")
    page = Page(browser, path)
    assert "still running, or killed" in page["subtitle"].text
    assert "not ended" in page["coverage"].text
    assert "found nothing" in page["alerts"].text
