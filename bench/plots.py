"""draw(): cost against the size of the tensor and against its channels, as SVG for both themes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.measured import Case, Results

INK = "#7d8590"
"""Of text and axes: readable on white and on near-black, as the background is transparent."""

STYLES: Mapping[str, Mapping[str, Any]] = {
    "read": {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.6},
    "hookstats": {"color": "#2f81f7", "linewidth": 2.8, "zorder": 5},
    "1 thread": {"color": "#2f81f7", "linewidth": 1.4, "linestyle": (0, (1, 1.2))},
    "+ 64 bins per channel": {"color": "#a371f7", "linewidth": 2.2, "zorder": 4},
    "+ log bins": {"color": "#1b9e9e", "linewidth": 2.2, "zorder": 4},
    "compile": {"color": "#d9730d", "linewidth": 1.8},
    "eager": {"color": "#e5534b", "linewidth": 1.8},
}
OTHERS = ("#57ab5a", "#b08800", "#c96198", "#986ee2")
"""Of peers that compute a part."""

NAMES = {
    "read": "read (torch.sum)",
    "hookstats": "hookstats: moments",
    "1 thread": "the same, 1 thread",
    "+ 64 bins per channel": "hookstats: + 64 bins per channel",
    "+ log bins": "hookstats: + log bins",
    "compile": "torch.compile: moments",
    "eager": "eager torch: moments",
}
SIZES = "scaling with the size"
CHANNELS = "scaling with the channels"
RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "hookstats",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(results: Results, folder: Path) -> Sequence[Path]:
    """Write the figures that `results` has the cases of; their paths."""
    drawn = []
    with mpl.rc_context(RC):
        if sizes := results.of(SIZES):
            drawn.append(_save(_by_size(sizes), folder / "cost-by-size.svg"))
        if channels := results.of(CHANNELS):
            drawn.append(_save(_by_channels(channels), folder / "cost-by-channels.svg"))
    return drawn


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
    return path


def _lines(axes: Axes, cases: Sequence[Case], fact: str) -> None:
    """A line a peer: ns per element over `fact`."""
    others = cycle(OTHERS)
    for peer in dict.fromkeys(peer for case in cases for peer in case.seconds):
        style = STYLES.get(peer) or {"color": next(others), "linewidth": 1.2}
        label = NAMES.get(peer, f"{peer}, a part")
        points = [(case.facts[fact], case.value(peer)) for case in cases if peer in case.seconds]
        axes.plot(*zip(*points, strict=True), label=label, marker="o", markersize=3, **style)
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    axes.tick_params(which="minor", length=0)


def _ticks(axes: Axes, ticks: Mapping[float, str]) -> None:
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xticks([], minor=True)


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.02),
        ncols=columns,
        frameon=False,
    )


def _by_size(cases: Sequence[Case]) -> Figure:
    figure = Figure(figsize=(8, 4.6))
    axes = figure.subplots()
    _lines(axes, cases, "_bytes")
    _ticks(axes, {case.facts["_bytes"]: case.name for case in cases[::2]})
    axes.set(xlabel="size of one fp32 tensor", ylabel="ns per element")
    axes.set_title("Statistics of a whole tensor, by its size", loc="left")
    _legend(figure, axes, 3)
    return figure


def _by_channels(cases: Sequence[Case]) -> Figure:
    tables = list(dict.fromkeys(case.table.title for case in cases))
    figure = Figure(figsize=(8, 4.2))
    panels = figure.subplots(1, len(tables), sharey=True, squeeze=False)[0]
    for axes, title in zip(panels, tables, strict=True):
        some = [case for case in cases if case.table.title == title]
        _lines(axes, some, "_channels")
        _ticks(axes, {c.facts["_channels"]: f"{c.facts['_channels']:g}" for c in some[::2]})
        axes.set(xlabel="channels")
        axes.set_title(title.partition(": ")[2], loc="left")
    panels[0].set_ylabel("ns per element")
    _legend(figure, panels[0], 3)
    return figure
