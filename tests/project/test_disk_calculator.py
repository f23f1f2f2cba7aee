"""The calculator of the docs, in a browser, says what `watch` says of real models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.browser import chromium
from support.paths import ROOT
from torch import nn

import hookstats as hs
from hookstats.stats.messages import size

UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
OFF = 1.5  # how many times too much or too little it may be

pytestmark = pytest.mark.check

Made = tuple[nn.Module, torch.Tensor, int]
"""A model, an input, and the values of a channel."""


def mlp() -> Made:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(64, 256), 64


def transformer() -> Made:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.randn(4, 64, 64), 4 * 64


def convolutions() -> Made:
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
    ]
    return nn.Sequential(*layers), torch.randn(8, 32, 16, 16), 8 * 16 * 16


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with the form and the script of the docs."""
    scratch = tmp_path_factory.mktemp("calculator")
    guide = (ROOT / "docs" / "guides" / "long.md").read_text("utf-8")
    (form,) = re.findall(r"^```\{raw\} html\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    page = scratch / "page.html"
    folder = (ROOT / "docs" / "_static").as_uri()
    page.write_text(f"<!doctype html>{form.replace('../_static', folder)}", "utf-8")
    with chromium(scratch / "profile") as browser:
        browser.get(page.as_uri())
        yield browser
        assert browser.get_log("browser") == []


def calculated(calculator: Any, **asked: float | bool) -> str:
    """What the calculator says."""
    script = """
        const form = document.querySelector("form");
        for (const [name, value] of Object.entries(arguments[0])) {
          const input = form.elements[name];
          if (input.type === "checkbox") input.checked = value;
          else input.value = value;
        }
        form.dispatchEvent(new Event("input"));
        return form.querySelector("output").textContent;
    """
    said: str = calculator.execute_script(script, asked)
    return said


def number(text: str) -> float:
    """The bytes that a text says per 1,000 steps."""
    found = re.search(r"about (\S+) (\S+) per 1,000 steps", text, re.IGNORECASE)
    assert found, text
    return float(found[1]) * UNITS[found[2]]


@pytest.mark.parametrize("make", [mlp, transformer, convolutions])
@pytest.mark.parametrize("channel_bins", [None, hs.LogBins()], ids=["", "channel_bins"])
@pytest.mark.parametrize("bins", [None, hs.LogBins()], ids=["", "bins"])
def test_it_says_what_watch_says(
    calculator: Any,
    make: Callable[[], Made],
    bins: hs.LogBins | None,
    channel_bins: hs.LogBins | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    model, data, values = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings: dict[str, Any] = {"bins": bins, "channel_bins": channel_bins, "rules": ()}
    with hs.watch(model, optimizer, out=tmp_path / "run", **settings) as watch:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn_like(data)).square().mean().backward()
            optimizer.step()
            watch._recorder.drain(disk=False)
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "per 1,000 steps" in one]
    sites = hs.open_run(tmp_path / "run")[0].sites
    said = calculated(
        calculator,
        layers=1,
        tensors=len(sites),
        channels=sum(site.channels for site in sites) / len(sites),
        values=values,
        bins=bins is not None,
        channelBins=channel_bins is not None,
    )
    assert number(line) / OFF < number(said) < number(line) * OFF, (line, said)


def test_hours_ranks_and_every_count(calculator: Any) -> None:
    asked = {"layers": 10, "tensors": 4, "channels": 100, "values": 64, "bins": False}
    asked |= {"channelBins": False, "rate": 2, "hours": 5, "every": 1, "ranks": 1}
    said = calculated(calculator, **asked)
    whole = 40 * (80 + 100 * 30 / 16) * 5 * 3600 * 2
    assert f", and {size(whole)} in all; the 10 GiB of max_bytes would be full after" in said
    assert number(calculated(calculator, **{**asked, "every": 10})) == pytest.approx(
        number(said) / 10, rel=0.01
    )
    more = calculated(calculator, **{**asked, "ranks": 32})
    assert number(more) == pytest.approx(number(said) * 32, rel=0.05)  # "10 MiB" are 9.5 to 10.5
    assert "the 10 GiB of max_bytes are full, and old steps are thinned, after" in more
    assert inspect.signature(hs.watch).parameters["max_bytes"].default == 10 << 30
    assert calculated(calculator, **{**asked, "every": 0}) == "Each number must be positive."
