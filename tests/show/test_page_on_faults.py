"""The page of runs with planted faults: where an alert began it says what the run says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium, screen
from support.opened import number, open_page

import hookstats as hs
from hookstats.records.alerts import worst
from hookstats.show import page as report

cases = pytest.importorskip("bench.faults.cases", reason="needs bench, from a checkout")
faults = pytest.importorskip("bench.faults.faults", reason="needs bench, from a checkout")

pytestmark = pytest.mark.check

PLANTED = (
    *("data/nan-pixel", "optim/rate-jump", "numerics/overflow", "arch/dead-late"),
    "init/large-gpt-attention",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        screen(driver, 1280, 900)
        yield driver


TELL = """
    const found = [];
    for (const button of document.querySelectorAll("[data-alert]")) {
      button.click();
      const tiles = {};
      for (const tile of document.querySelectorAll("#tiles > div")) {
        tiles[tile.querySelector("dt").textContent] =
          [...tile.querySelectorAll("dd")].map((node) => node.textContent);
      }
      const shown = document.getElementById("detail").dataset;
      found.push([Number(button.dataset.alert), document.getElementById("when").textContent,
                  shown.layer, shown.kind, tiles]);
    }
    return found;
"""


@pytest.mark.parametrize("name", PLANTED)
def test_tiles_at_each_alert_are_those_of_its_step(browser: Any, tmp_path: Path, name: str) -> None:
    fault = next(fault for fault in faults.FAULTS if fault.name == name)
    cases.run_case(fault.base, fault, 0, out=tmp_path / "run")
    run = hs.open_run(tmp_path / "run")
    # So little room that everything is merged which may be merged.
    path = tmp_path / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_MOST_BYTES", 0)
        patch.setattr(report, "_LEAST_BYTES", 3000)
        report.write(run, path)
    open_page(browser, path.as_uri())
    browser.set_script_timeout(60)
    told = browser.execute_script(TELL)
    alerts = [alert for incident in worst(run.incidents) for alert in incident.alerts]
    assert len(told) == len(alerts) > 0
    checked = 0
    for n, when, layer, kind, tiles in told:
        step = alerts[n].since if alerts[n].since in run else alerts[n].step
        if step in run:
            assert when == f"step {step}"
        if (alerts[n].site, alerts[n].kind) != (layer, kind):
            continue  # about a number of the training, or a tensor that is not recorded
        assert all(len(texts) == 1 for texts in tiles.values()), "a tile names a span of steps"
        check(run[step][layer, kind], {name: texts[0] for name, texts in tiles.items()})
        checked += 1
    assert checked or all(alert.kind in ("scalar", "param") for alert in alerts)


def check(stats: hs.ChannelStats, tiles: dict[str, str]) -> None:
    whole = stats.per_tensor()
    for name in ("rms", "mean", "std", "min", "max"):
        if int(whole.count):
            expected = float(getattr(whole, name))
            assert number(tiles[name]) == pytest.approx(expected, rel=0.011, abs=1e-37)
        else:
            assert tiles[name] in ("\u2013", "NaN")
    bad = {"NaN": whole.nan, "+\u221e": whole.posinf, "\u2212\u221e": whole.neginf}
    said = [f"{int(count):,} {text}" for text, count in bad.items() if int(count)]
    assert tiles["non-finite"] == (", ".join(said) or "none")
    assert tiles["dead channels"] == f"{int(hs.insight.dead(stats).sum())} of {len(stats)}"
    if int(whole.count):
        share = float(whole.zero) / float(whole.count)
        text = tiles["zeros"].removesuffix(" %")
        assert text in ("<0.1", ">99.9") or float(text) == pytest.approx(100 * share, abs=0.06)
