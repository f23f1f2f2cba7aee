"""The first view of a page with an incident: its layer has the most extreme colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.browser import screen
from support.opened import Page
from support.samples import BINS, record_of

import hookstats as hs
from hookstats.records.alerts import Alert
from hookstats.runs.writer import RunWriter
from hookstats.show import page as report

pytestmark = pytest.mark.check

STEPS, FAULT = 60, 36
SCALES = (1e-3, 0.03, 1.0, 20.0, 300.0, 5.0)
"""The usual rms of each layer: one scale for all would hide what a layer does."""


def trained(path: Path, change: Callable[[int, torch.Tensor], torch.Tensor]) -> hs.Run:
    """A run of six layers, the fourth of which changes from `FAULT` on."""
    writer = RunWriter(path, {"bins": BINS, "channel_bins": None})
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        outputs = {}
        for layer, scale in enumerate(SCALES):
            x = torch.randn(128, 8, generator=generator).abs() * scale * (1 + step / STEPS)
            outputs[f"layer{layer}", "output"] = (change(step, x) if layer == 3 else x, 1)
        writer.write(record_of(outputs, step, channel_bins=None))
    writer.close()
    return hs.open_run(path)


def shifted(step: int, x: torch.Tensor) -> torch.Tensor:
    return x * (40 if step >= FAULT else 1)


def always(step: int, x: torch.Tensor) -> torch.Tensor:
    return x * 40


def healthy(step: int, x: torch.Tensor) -> torch.Tensor:
    return x


def died(step: int, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.arange(8) >= (6 if step >= FAULT else 0))


def broke(step: int, x: torch.Tensor) -> torch.Tensor:
    return x.index_fill(1, torch.tensor([2]), torch.nan) if step >= FAULT else x


@pytest.mark.parametrize(
    ("change", "rule", "statistic"),
    [
        (shifted, "sudden shift", "rms"),
        (died, "dead channels", "dead"),
        (broke, "non-finite", "nonfinite"),
    ],
)
def test_the_incident_decides_the_first_view(
    browser: Any, tmp_path: Path, change: Any, rule: str, statistic: str
) -> None:
    run = trained(tmp_path / "run", change)
    screen(browser, 1280, 900)
    page = Page(browser, report.write(run, tmp_path / "page.html", rules=rule))
    layer, step = page.chosen
    assert layer == "layer3"
    assert step == f"step {FAULT}"
    (alert,) = [one for one in hs.rules.replay(run, rules=rule) if one.site == "layer3"]
    card = page.all(".alert")[0].text
    assert f"step {FAULT}\n" in card
    assert (f"noticed in step {alert.step}" in card) == (alert.step > FAULT)
    assert page["statistic"].get_attribute("value") == statistic
    assert page["relative"].is_selected() == (statistic == "rms")
    assert page["usual"].text == f"each layer\u2019s median before step {FAULT}"
    assert page["main"].get_attribute("data-striking") == "layer3"
    assert page.link.endswith(f"&before={FAULT}")


@pytest.mark.parametrize("since", [FAULT, FAULT - 2])
@pytest.mark.parametrize(
    ("key", "says"),
    [
        (("layer3", "output"), "is wrong"),
        (("", "input"), "input of the model is wrong"),
        (("loss", "scalar"), "loss is wrong"),
    ],
)
def test_an_incident_says_nothing_twice(
    browser: Any,
    runs: dict[Any, hs.Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: tuple[str, str],
    says: str,
    since: int,
) -> None:
    alert = hs.rules.Exploding().about(key, FAULT, None, "is wrong", 1.0, since=since)
    monkeypatch.setattr(hs.Run, "alerts", [alert])
    page = Page(browser, report.write(runs[healthy], tmp_path / "page.html"))
    late = f" (noticed in step {FAULT})" if since < FAULT else ""
    assert page.all(".alert .what")[0].text == says + late


def dropped(step: int, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.arange(128) % 8 == 0)[:, None] if step >= FAULT else x


CHANGES = {
    "dead channels": died,
    "non-finite": broke,
    **dict.fromkeys(("dropout", "underflow"), dropped),
    **dict.fromkeys(("untrained", "loop", "mode", "logits", "targets"), healthy),
    **dict.fromkeys(("accumulation", "repeated inputs", "update size"), healthy),
    **dict.fromkeys(("rounding", "collapse"), healthy),
}
"""What shows where a rule finds something; `always` or `shifted` for all others."""
NUMBERS = ("weight decay", "learning rate", "clipping", "loss", "loss graph")
"""The rules about a number that is logged: the layer that differs most then is shown."""
EARLY = ("initialisation", "untrained", "inputs", "depth", "linear range")
"""Rules that look at the first steps, which have no past to compare with."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, hs.Run]:
    """A run of each change."""
    out = tmp_path_factory.mktemp("runs")
    return {
        one: trained(out / one.__name__, one)
        for one in (shifted, always, died, broke, dropped, healthy)
    }


@pytest.mark.parametrize("rule", [rule.name for rule in hs.rules.default_rules()])
def test_the_faulty_row_has_the_most_extreme_colour(
    browser: Any,
    runs: dict[Any, hs.Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
) -> None:
    """Of an incident of each rule; its consequences, and all else that stands out, are faded."""
    early = rule in EARLY
    change, since = CHANGES.get(rule, always if early else shifted), 0 if early else FAULT
    if rule in NUMBERS:
        site, kind = "loss", "scalar"
    elif rule in ("initialisation", "untrained"):
        site, kind = "layer3.weight", "param"
    else:
        site, kind = "layer3", "output"
    alert = Alert(since + 5, 0, site, kind, None, rule, 1.0, rule, "warning", since)
    monkeypatch.setattr(hs.Run, "alerts", [alert])
    screen(browser, 1280, 800)
    page = Page(browser, report.write(runs[change], tmp_path / "page.html"))
    assert page.chosen[1] == f"step {since}"
    contrasts = page.contrasts()
    assert page.chosen[0] == "layer3"
    assert contrasts.index(max(contrasts)) == 3
    assert max(contrasts) > 60
    if rule not in NUMBERS:
        page["unfade"].click()
        assert sum(page.contrasts()) > sum(contrasts)
        assert page.chosen == ("layer3", f"step {since}")


def test_the_faulty_row_of_many_is_on_the_screen(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None})
    outputs = {(f"layer{i}", "output"): (torch.ones(2, 2), 1) for i in range(120)}
    for step in range(2):
        writer.write(record_of(outputs, step, channel_bins=None))
    writer.close()
    alert = Alert(1, 0, "layer90", "output", None, "exploding", 1.0, "exploding", "error")
    monkeypatch.setattr(hs.Run, "alerts", [alert])
    screen(browser, 1280, 800)
    page = Page(browser, report.write(hs.open_run(tmp_path / "run"), tmp_path / "page.html"))
    assert page.chosen == ("layer90", "step 1")
    canvas = page.all("#heatmap canvas")[0]
    top = page.script("return arguments[0].getBoundingClientRect().top", canvas)
    assert 0 < top + (90.5 / 120) * canvas.rect["height"] < 700


def test_two_runs_open_at_their_first_difference_with_the_incidents_of_both(
    browser: Any, tmp_path: Path
) -> None:
    a, b = trained(tmp_path / "a", healthy), trained(tmp_path / "b", shifted)
    page = Page(browser, report.write(a, tmp_path / "page.html", rules="sudden shift", other=b))
    assert page.chosen == ("layer3", f"step {FAULT}")
    assert page["alerts-title"].text == "Incidents (1)"
    assert page["dashes"].text == "solid: A: a, dashed: B: b"
    assert page.all(".alert .when")[0].text.startswith("B, since step ")
    page.script("document.querySelector('.alert').click()")
    assert page["main"].get_attribute("data-striking") == "layer3"
    assert "beside=b" in page.link
    page.press(page["search"], "no such layer")
    assert page.all("#heatmap canvas")[0].get_attribute("data-rows") == "0"
