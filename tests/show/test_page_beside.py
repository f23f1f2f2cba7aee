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
from support.samples import changed, record_of
from torch import nn

import hookstats as hs
from hookstats.records.norms import GRADIENT_NORM, gradient_norm
from hookstats.records.record import StepRecord
from hookstats.show.overview import norms_of, overview
from hookstats.show.paired import paired

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
        record = changed(record, moments=record.moments * np.array([3, 9, 3, 3, 3.0]))
    if rank and step == 2:
        tallies = record.tallies.copy()
        tallies[0, 1] += 1
        record = changed(record, tallies=tallies)
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


def gradients(step: int) -> StepRecord:
    """A weight's gradient; step 3 has none."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    kind = "param" if step == 3 else "param_grad"
    return record_of({("a.weight", kind): (x, 0), ("a", "output"): (x, 1)}, step)


def test_the_norm_of_what_is_beside_is_over_its_own_steps(tmp_path: Path) -> None:
    run = hs.open_run(write_run(tmp_path / "a", *map(gradients, range(6))))
    other = hs.open_run(write_run(tmp_path / "b", *map(gradients, (0, 2))))
    norms = [gradient_norm(run[step]) for step in range(6)]
    assert norms[3] is None
    view = overview(run)
    assert norms_of(view) == pytest.approx(norms)
    assert norms_of(paired(other, view)) == pytest.approx([norms[0], None, norms[2], *[None] * 3])
    wide = overview(run, cells=4)
    assert wide.spans == ((0, 3), (3, 6))
    squares = [norm**2 for norm in norms if norm is not None]
    means = [np.sqrt(np.mean(some)) for some in (squares[:3], squares[3:])]
    assert norms_of(wide) == norms_of(view.merged([0, 3])) == pytest.approx(means)
    both = np.sqrt((squares[0] + squares[2]) / 2)
    assert norms_of(paired(other, wide)) == pytest.approx([both, None])
    packed = payload_of(page_of(run, other, tmp_path))
    (norm,) = (one for one in packed["others"][0]["curves"] if one["name"] == GRADIENT_NORM)
    assert norm["values"] == [float(f"{norms[0]:.6g}"), None, float(f"{norms[2]:.6g}"), *[None] * 3]


def page_of(run: hs.Run, other: hs.Run, tmp_path: Path) -> str:
    return run.report(tmp_path / "page.html", other=other).read_text("utf-8")


def half_dead(channels: int) -> StepRecord:
    x = torch.ones(4, channels)
    x[:, : channels // 2] = 0.0
    return record_of({("relu", "output"): (x, 1)}, 0)


@check
def test_the_share_of_dead_channels_is_of_the_runs_own(browser: Any, tmp_path: Path) -> None:
    run, other = (
        hs.open_run(write_run(tmp_path / str(channels), half_dead(channels), close=False))
        for channels in (4, 8)
    )
    page_of(run, other, tmp_path)
    page = Page(browser, tmp_path / "page.html")
    page.kind("output")
    page.choose("dead")
    for beside, said in (("a", "50 %, 2 of 4 channels"), ("b", "50 %, 4 of 8 channels")):
        page.script(f"document.querySelector('#beside [value={beside}]').click()")
        share, dead = said.split(", ")
        assert f"share of dead channels {share}" in page["readout"].text
        assert page["readout"].text.endswith(f"{dead} dead")
    page.script("document.querySelector('#beside [value=ratio]').click()")
    assert "\u00d71" in page["readout"].text


@check
def test_magnitudes_beyond_float32_are_shown(browser: Any, tmp_path: Path) -> None:
    sizes = {"small": 1e-50, "usual": 1.0, "large": 1e39}
    x = torch.ones(4, 3, dtype=torch.float64)
    sites = {(name, "output"): (x * size, 1) for name, size in sizes.items()}
    run = hs.open_run(write_run(tmp_path / "run", record_of(sites), close=False))
    page = Page(browser, run.report(tmp_path / "page.html"))
    page.press(page.heatmap, page.keys.CONTROL, page.keys.HOME)
    for name, size in sizes.items():
        assert page.chosen[0] == name
        shown = page.tiles()["rms"], page["readout"].text.rpartition("rms ")[2].split()[0]
        assert [*map(number, shown)] == pytest.approx([size] * 2, rel=0.02, abs=0)
        page.press(page.heatmap, page.keys.ARROW_DOWN)


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
    assert page["relative"].is_selected()
    assert page["usual"].text == "the median of all layers"  # there is no past
    page["relative"].click()
    page.press(page.heatmap, "n")
    assert page["relative"].is_selected()  # as the incident is shown


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


def test_the_page_opens_at_what_compare_finds_first(tmp_path: Path) -> None:
    runs = []
    for name, shift in (("a", 0.0), ("b", 1.0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with hs.watch(model, optimizer, out=tmp_path / name, every=1, rules=()):
            for step in range(4):
                if step == 2:  # gradients of layers before it differ, too
                    nn.init.constant_(model[2].bias, shift)
                optimizer.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
        runs.append(hs.open_run(tmp_path / name))
    first = hs.compare(*runs).first
    assert first is not None
    step, differences = first
    packed = payload_of(page_of(*runs, tmp_path))
    site = packed["sites"][packed["differ"]["site"]]
    assert (packed["differ"]["step"], site["name"], site["kind"]) == (2, "2", "output")
    assert (step, differences[0].name, differences[0].kind) == (2, "2", "output")
