"""What the page derives and sets beside: ranks, updates by weights, room below a format's limit;
where it opens, and what it is on paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.browser import chromium, screen
from support.commands import call, healthy, write_run
from support.opened import Page, number
from support.payloads import payload_of

import hookstats as hs
from hookstats.records.record import StepRecord

check = pytest.mark.check


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        screen(driver, 1280, 800)
        yield driver


def of_rank(step: int, rank: int) -> StepRecord:
    """Rank 1 is three times as large, and has a NaN in the last step."""
    record = replace(healthy(step + 10 * rank), step=step, rank=rank)
    if rank:
        record = replace(record, moments=record.moments * np.array([3, 9, 3, 3, 3.0]))
    if rank and step == 2:
        tallies = record.tallies.copy()
        tallies[0, 1] += 1
        record = replace(record, tallies=tallies)
    return record


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> hs.Run:
    out = tmp_path_factory.mktemp("runs") / "ranks"
    for rank in (0, 1):
        write_run(out, *(of_rank(step, rank) for step in range(3)), rank=rank, close=False)
    return hs.open_run(out)


def test_ranks_come_only_when_asked_for(ranks: hs.Run, tmp_path: Path) -> None:
    merged = payload_of(ranks.report(tmp_path / "a.html").read_text("utf-8"))
    assert (merged["others"], merged["ofRanks"]) == ([], False)
    out = tmp_path / "b.html"
    assert call("report", ranks.path, "--ranks", "-o", out).code == 0
    each = payload_of(out.read_text("utf-8"))
    assert [one["name"] for one in each["others"]] == ["rank 0", "rank 1"]
    assert each["ofRanks"]
    for refused in (("--rank", 0), (ranks.path,)):
        found = call("report", ranks.path, *refused, "--ranks")
        assert found.code == 2
        assert "--ranks: expected neither another run nor --rank" in found.err
    with pytest.raises(ValueError, match="ranks = True: expected no other run"):
        ranks.report(other=ranks, ranks=True)


@check
def test_each_rank_can_be_chosen(browser: Any, ranks: hs.Run, tmp_path: Path) -> None:
    page = Page(browser, ranks.report(tmp_path / "page.html", ranks=True))
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    name, kind = next(iter(ranks[0]))

    def rms(run: hs.Run, step: int) -> float:
        return float(run[step][name, kind].per_tensor().rms)

    def shown() -> str:
        found: str = page["readout"].text.rpartition("rms")[2]
        return found

    assert number(shown().split()[0]) == pytest.approx(rms(ranks, 0), rel=0.01)  # merged, at first
    from selenium.webdriver.support.select import Select

    choice = Select(page["others"])
    assert [option.text for option in choice.options] == ["rank 0", "rank 1"]
    choice.select_by_visible_text("rank 1")
    assert number(shown().split()[0]) == pytest.approx(rms(ranks.of_rank(1), 0), rel=0.01)
    page.script("document.querySelector('#beside [value=ratio]').click()")
    ratio = rms(ranks.of_rank(1), 0) / rms(ranks, 0)
    assert shown().startswith(", rank 1 \u00f7 all \u00d7")
    assert number(shown().rpartition("\u00d7")[2].split()[0]) == pytest.approx(ratio, rel=0.02)
    assert "other=rank+1" in page.link
    # What is not finite on one rank is not said of the other.
    page.press(page.heatmap, page.keys.END)
    assert "1 value not finite" in page["readout"].text
    page.script("document.querySelector('#beside [value=b]').click()")
    choice = Select(page["others"])
    choice.select_by_visible_text("rank 0")
    assert "not finite" not in page["readout"].text
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> hs.Run:
    """A training with weights, their gradients and their updates."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = tmp_path_factory.mktemp("runs") / "trained"
    kinds = ("output", "param", "param_grad", "update")
    with hs.watch(model, optimizer, kinds=kinds, out=out, rules=False):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
    return hs.open_run(out)


@check
def test_updates_and_gradients_are_divided_by_their_weights(
    browser: Any, trained: hs.Run, tmp_path: Path
) -> None:
    page = Page(browser, trained.report(tmp_path / "page.html"))
    page.kind("output")
    options = "return [...document.querySelectorAll('#statistic option')].map((o) => o.value)"
    assert "ofweight" not in page.script(options)
    for kind in ("update", "param_grad"):
        page.kind(kind)
        page.choose("ofweight")
        page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
        page.press(page.heatmap, page.keys.ARROW_RIGHT, page.keys.ARROW_RIGHT)
        name, when = page.chosen
        step = int(when.removeprefix("step "))
        record = trained[step]
        ours, weight = (float(record[name, k].per_tensor().rms) for k in (kind, "param"))
        shown = page["readout"].text.rpartition("rms of its weight ")[2].split()[0]
        assert number(shown) == pytest.approx(ours / weight, rel=0.02)


@check
@pytest.mark.parametrize("name", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_headroom_is_in_octaves_below_the_limit(
    browser: Any, trained: hs.Run, tmp_path: Path, name: str
) -> None:
    page = Page(browser, trained.report(tmp_path / "page.html"))
    page.kind("output")
    page.choose(f"headroom-{name}")
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    site, _ = page.chosen
    most = torch.finfo(getattr(torch, name)).max
    expected = np.log2(most / float(trained[0][site, "output"].per_tensor().amax))
    shown = page["readout"].text.rpartition(f"limit of {name} ")[2].split()[0]
    assert number(shown) == pytest.approx(expected, abs=0.02 + 0.01 * abs(expected))


@check
def test_what_is_wrong_from_the_start_shows_on_one_scale(browser: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32) for _ in range(5)]
    with torch.no_grad():
        layers[2].weight *= 30
    model = torch.nn.Sequential(*layers)
    rules = hs.rules.Initialisation(action=lambda alert: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with hs.watch(model, optimizer, out=tmp_path / "run", rules=rules):
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
    page = Page(browser, hs.open_run(tmp_path / "run").report())
    # The alert is about a weight, which is not recorded: its module's output shows it.
    assert page.chosen == ("2", "step 0")
    assert "kind=output" in page.link
    assert not page["relative"].is_selected()
    page["relative"].click()
    page.press(page.heatmap, "n")
    assert page["relative"].is_selected()  # what somebody chose stays


@check
def test_on_paper_the_page_is_light_and_nothing_is_stretched(
    browser: Any, trained: hs.Run, tmp_path: Path
) -> None:
    screen(browser, 1280, 800, dark=True)
    page = Page(browser, trained.report(tmp_path / "page.html"))
    shape = """
        return [...document.querySelectorAll("canvas")].filter((c) => c.clientWidth).map(
          (c) => [c.id, c.width / c.clientWidth, c.height / c.clientHeight, c.clientWidth]);
    """
    page.script("dispatchEvent(new Event('beforeprint'))")
    assert page.script("return document.documentElement.dataset.theme") == "light"
    seen = page.script(shape)
    assert len(seen) >= 7
    for name, across, down, width in seen:
        assert (across, down) == (pytest.approx(1, abs=0.01), pytest.approx(1, abs=0.01)), name
        assert width <= 690
    assert not page.all(".tools")[0].is_displayed()
    page.script("dispatchEvent(new Event('afterprint'))")
    assert page.script("return document.documentElement.dataset.theme") == "dark"
    assert max(width for *_, width in page.script(shape)) > 690
    screen(browser, 1280, 800)
