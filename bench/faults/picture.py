"""Draws the README's picture: a run of the corpus whose fault the loss does not tell.

python -m bench.faults.picture docs/figures    writes caught-light.svg and caught-dark.svg
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from numpy.typing import NDArray

from bench.faults.cases import run_case
from bench.faults.faults import FAULTS
from hookstats.records.alerts import Incident
from hookstats.runs.run import Run, open_run

FAULT = "init/large-gpt-attention"
SEED = 0
WIDTH, LEFT, TOP, LOSS, CELL = 860, 110, 26, 84, 14
LEVELS = 32  # colours of the heatmap


class Theme(NamedTuple):
    """The colours of a picture."""

    name: str
    text: str
    faint: str
    line: str
    loss: str
    alarm: str
    ground: str


THEMES = (
    Theme("light", "#1f2328", "#59636e", "#d1d9e0", "#0a5fc4", "#c01c28", "#ffffff"),
    Theme("dark", "#f0f6fc", "#9198a1", "#3d444d", "#7db4ff", "#ff7b72", "#0d1117"),
)


class Caught(NamedTuple):
    """What the picture shows."""

    layers: list[str]
    rms: NDArray[np.float64]
    """float64 [layers, steps]."""
    losses: Sequence[float]
    healthy: Sequence[float]
    incident: Incident
    culprit: int
    """The layer that the incident is about."""


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as out:
        caught = _caught(Path(out, "run"))
    for theme in THEMES:
        path = directory / f"caught-{theme.name}.svg"
        path.write_text(draw(caught, theme), "utf-8")
        print(path)


def _caught(out: Path) -> Caught:
    (fault,) = (one for one in FAULTS if one.name == FAULT)
    outcome = run_case(fault.base, fault, SEED, out=out)
    healthy = run_case(fault.base, None, SEED)
    run: Run = open_run(out)
    types = run.header["modules"]
    series = {k: site for k, site in run.series("*", "output").items() if types[k[0]] == "Linear"}
    rms = np.array([site.rms for site in series.values()])
    layers = [name for name, _ in series]
    incident = outcome.incidents[0]
    owner = incident.alerts[0].site.removesuffix(".weight")
    return Caught(layers, rms, outcome.losses, healthy.losses, incident, layers.index(owner))


def draw(caught: Caught, theme: Theme) -> str:
    """The picture, as SVG: the loss, the heatmap below it on the same steps, and the sentence."""
    layers, steps = caught.rms.shape
    room = WIDTH - LEFT - 20
    heat = TOP + LOSS + 34
    bottom = heat + layers * CELL
    parts = [
        _text(LEFT, 20, "The loss falls, only more slowly than it could …", theme.text, weight=600),
        *_losses(caught, theme, room),
        _text(LEFT, heat - 8, "… and one layer is unlike the others", theme.text, weight=600),
        _text(
            *(WIDTH - 20, heat - 8, "rms of the outputs of linear layers, log scale", theme.faint),
            size=11,
            anchor="end",
        ),
        *_cells(caught, room, heat),
    ]
    for row, name in enumerate(caught.layers):
        bad = row == caught.culprit
        colour, weight = (theme.alarm, 700) if bad else (theme.faint, 400)
        y = heat + row * CELL + 10.5
        parts.append(_text(LEFT - 8, y, name, colour, size=10, weight=weight, anchor="end"))
    y = heat + caught.culprit * CELL
    parts.append(
        f'<rect x="{LEFT - 1}" y="{y - 1}" width="{room + 2}" height="{CELL + 2}" fill="none" '
        f'stroke="{theme.alarm}" stroke-width="2" rx="2"/>'
    )
    for step in range(0, steps, 10):
        x = LEFT + (step + 0.5) * room / steps
        parts.append(_text(x, bottom + 14, str(step), theme.faint, size=10, anchor="middle"))
    parts.append(_text(LEFT - 8, bottom + 14, "step", theme.faint, size=10, anchor="end"))
    parts += _sentence(caught.incident, theme, bottom + 26)
    height = bottom + 88
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="-apple-system, Segoe UI, Helvetica, Arial, '
        f'sans-serif" role="img"><title>{escape(caught.incident.alerts[0].message)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _losses(caught: Caught, theme: Theme, room: float) -> list[str]:
    """The loss of the run, and of the same run without the fault."""
    both = [value for each in (caught.losses, caught.healthy) for value in each]
    low, high = min(both), max(both)
    steps = len(caught.losses)

    def line(values: Sequence[float], colour: str, dash: str) -> str:
        points = " ".join(
            f"{LEFT + (i + 0.5) * room / steps:.1f},{_y(value, low, high):.1f}"
            for i, value in enumerate(values)
        )
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-linejoin="round"{dash}/>'
        )

    def named(values: Sequence[float], text: str, colour: str, above: float) -> str:
        y = _y(values[-1], low, high) + above
        return _text(LEFT + room - 4, y, text, colour, size=11, anchor="end")

    return [
        f'<line x1="{LEFT}" y1="{TOP + LOSS}" x2="{LEFT + room}" y2="{TOP + LOSS}" '
        f'stroke="{theme.line}"/>',
        line(caught.healthy, theme.faint, ' stroke-dasharray="2 4"'),
        line(caught.losses, theme.loss, ""),
        _text(LEFT - 8, TOP + LOSS / 2, "loss", theme.faint, size=10, anchor="end"),
        named(caught.losses, f"this run: {caught.losses[-1]:.2f}", theme.loss, -12),
        named(caught.healthy, f"without the fault: {caught.healthy[-1]:.2f}", theme.faint, -8),
    ]


def _y(value: float, low: float, high: float) -> float:
    return TOP + LOSS - 4 - (value - low) / (high - low) * (LOSS - 26)


def _cells(caught: Caught, room: float, top: int) -> list[str]:
    """The heatmap of the rms on a log scale, one path per colour."""
    logs = np.log(np.maximum(caught.rms, 1e-12))
    share = (logs - logs.min()) / (logs.max() - logs.min())
    levels = np.minimum((share * LEVELS).astype(int), LEVELS - 1)
    colours = colormaps["viridis"].resampled(LEVELS)
    width = room / levels.shape[1]
    found = []
    for level in range(LEVELS):
        path = []
        for row, column in zip(*np.nonzero(levels == level), strict=True):
            x, y = LEFT + column * width, top + row * CELL
            path.append(f"M{x:.1f} {y}h{width + 0.2:.1f}v{CELL - 1}h-{width + 0.2:.1f}z")
        if path:
            red, green, blue, _ = (round(255 * part) for part in colours(level))
            found.append(f'<path fill="#{red:02x}{green:02x}{blue:02x}" d="{"".join(path)}"/>')
    return found


def _sentence(incident: Incident, theme: Theme, top: float) -> list[str]:
    """What hookstats says, in a box, its lines broken at words."""
    words, lines = str(incident).split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    box = (
        f'<rect x="1" y="{top}" width="{WIDTH - 2}" height="{24 + 17 * len(lines)}" rx="6" '
        f'fill="{theme.ground}" stroke="{theme.alarm}" stroke-width="1.5"/>'
    )
    mono = ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"'
    said = [
        _text(18, top + 25 + 17 * i, line, theme.text, size=12.5, more=mono)
        for i, line in enumerate(lines)
    ]
    return [box, *said]


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    *,
    size: float = 13,
    weight: int = 400,
    anchor: str = "start",
    more: str = "",
) -> str:
    if not math.isfinite(y):
        raise ValueError(f"y = {y}: expected a finite place for {text!r}")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}"{more}>{escape(text)}</text>'
    )


if __name__ == "__main__":
    main()
