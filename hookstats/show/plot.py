"""run.plot: figures for papers, by matplotlib; every recorded step, nothing merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookstats.runs.series import SiteSeries
from hookstats.show.distribution import QUANTILES, distributions
from hookstats.show.overview import execution_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hookstats.runs.run import Run

_LOG = ("std", "rms", "amax", "l1_norm", "l2_norm", "var")
_SIGNED = ("mean", "min", "max")
_COUNTS = ("count", "nan", "posinf", "neginf", "zero")
STATISTICS = (*_LOG, *_SIGNED, *_COUNTS)
"""What can be plotted."""

_ROWS = 96  # parts of a histogram's axis
_FAINTEST = 1e-6  # share of a step's values that is shown


class Plots:
    """Figures of a run; `Run.plot` makes it.

    Colours are viridis, or RdBu for either sign: both safe for colour-blind eyes. Figures belong
    to no window and no pyplot state: save them with ``figure.savefig``; notebooks show them.
    Where `ax` is given, a figure is drawn there, and its own figure is returned.

    Raises:
        ImportError: (every method) matplotlib is not installed.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def heatmap(
        self,
        statistic: str = "rms",
        kind: str = "output",
        names: str = "*",
        *,
        rank: int = 0,
        ax: Axes | None = None,
    ) -> Figure:
        """Layers by steps, the layers in order of execution; what was not recorded is white.

        Magnitudes are on a log scale; zero and what is not finite are white there, too.

        Args:
            statistic: one of `STATISTICS`, of the whole tensor.
            kind, names: which tensors, as in ``run[names, kind]``.
        Raises:
            ValueError: another statistic.
            KeyError: nothing matches.
        """
        _check(statistic)
        series = self._run.series(names, kind, rank)
        steps = np.unique(np.concatenate([site.steps for site in series.values()]))
        known = self._run.record(int(steps[-1]), rank).keys()  # with kinds that tell the order
        ordered = (known[i] for i in execution_order(known))
        sites = [series[key] for key in dict.fromkeys((*ordered, *series)) if key in series]
        values = np.full((len(sites), len(steps)), np.nan)
        for row, site in enumerate(sites):
            values[row, np.searchsorted(steps, site.steps)] = getattr(site, statistic)
        height = min(max(1.5 + 0.18 * len(sites), 2.5), 12.0)
        figure, ax = _axes(ax, (7.0, height))
        _mesh(ax, steps, np.arange(len(sites) + 1) - 0.5, values, statistic)
        every = -(-len(sites) // 60)
        shown = [site.name or "(root)" for site in sites[::every]]
        ax.set_yticks(range(0, len(sites), every), shown, parse_math=False)
        ax.tick_params("y", labelsize=7)
        ax.invert_yaxis()
        ax.set_xlabel("step")
        ax.set_title(f"{statistic} of {kind}")
        return figure

    def histogram(
        self, name: str, kind: str = "output", *, rank: int = 0, ax: Axes | None = None
    ) -> Figure:
        """The histogram of a tensor over the steps: each column the shares of a step's values.

        Raises:
            KeyError: no such tensor.
            ValueError: the run has no histograms, or there were no finite values.
        """
        site = self._site(name, kind, rank)
        found = _distributions(site)
        figure, ax = _axes(ax, (6.0, 3.5))
        edges = found.axis.values(_ROWS + 1)
        # Fainter ones are the part of a bin that lies beyond, no value.
        shares = np.where(found.shares > _FAINTEST, found.shares, np.nan)
        _mesh(ax, site.steps, edges, shares, "share of values")
        _value_axis(ax, found.axis.scale, edges)
        _label(ax, site)
        return figure

    def quantiles(
        self, name: str, kind: str = "output", *, rank: int = 0, ax: Axes | None = None
    ) -> Figure:
        """Median, quartiles, 1 and 99 %, least and greatest value of a tensor over the steps.

        Raises:
            KeyError: no such tensor.
            ValueError: the run has no histograms, or there were no finite values.
        """
        site = self._site(name, kind, rank)
        found = _distributions(site)
        figure, ax = _axes(ax, (6.0, 3.5))
        low, first, median, third, high = found.quantiles
        colour = "#0a5fc4"
        span = f"{QUANTILES[0]:.0%} to {QUANTILES[-1]:.0%}"
        ax.fill_between(site.steps, low, high, color=colour, alpha=0.2, lw=0, label=span)
        ax.fill_between(site.steps, first, third, color=colour, alpha=0.35, lw=0, label="quartiles")
        ax.plot(site.steps, median, color=colour, label="median")
        finite = site.count > 0
        for ends, label in ((site.min, "min, max"), (site.max, None)):
            ax.plot(site.steps, np.where(finite, ends, np.nan), "k:", lw=0.8, label=label)
        _value_axis(ax, found.axis.scale, found.axis.values(2))
        _label(ax, site)
        ax.margins(x=0)
        ax.legend(fontsize=8, framealpha=0.8)
        return figure

    def channels(
        self,
        name: str,
        kind: str = "output",
        statistic: str = "rms",
        *,
        rank: int = 0,
        ax: Axes | None = None,
    ) -> Figure:
        """The channels of a tensor by steps; dead ones, all values zero, are grey.

        Raises:
            KeyError: no such tensor.
            ValueError: another statistic; the number of channels changed from step to step.
        """
        _check(statistic)
        site = self._site(name, kind, rank)
        channels = site.channels
        values = np.asarray(getattr(channels, statistic), np.float64).T
        dead = channels.dead.T
        figure, ax = _axes(ax, (6.0, 3.5))
        edges = np.arange(len(values) + 1) - 0.5
        _mesh(ax, site.steps, edges, np.where(dead, np.nan, values), statistic)
        if dead.any():
            from matplotlib.colors import ListedColormap

            shown = np.where(dead, 1.0, np.nan)
            grey = ListedColormap(["#b0b0b0"])
            ax.pcolormesh(_edges(site.steps), edges, shown, cmap=grey, rasterized=True)
        ax.invert_yaxis()
        ax.set_ylabel("channel")
        _label(ax, site)
        return figure

    def _site(self, name: str, kind: str, rank: int) -> SiteSeries:
        """The one tensor that is meant, `name` being no glob."""
        found = self._run.series(name, kind, rank)
        if len(found) > 1:
            raise ValueError(f"name = {name!r}, kind = {kind!r}: {len(found)} match, expected one")
        return next(iter(found.values()))


def _check(statistic: str) -> None:
    if statistic not in STATISTICS:
        raise ValueError(f"statistic = {statistic!r}: expected one of {', '.join(STATISTICS)}")


def _distributions(site: SiteSeries) -> Any:
    if site.bins is None or site.hist is None:
        raise ValueError(f"{site.name!r}, {site.kind!r}: expected a run with histograms (bins)")
    columns = [(np.flatnonzero(h).astype(np.int32), h[h > 0]) for h in site.hist]
    found = distributions(site.bins, columns, site.min, site.max, _ROWS)
    if found is None:
        raise ValueError(f"{site.name!r}, {site.kind!r}: expected finite values, there are none")
    return found


def _axes(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"run.plot needs matplotlib ({error}): pip install matplotlib") from error
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").subplots()
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def _mesh(
    ax: Axes, steps: NDArray[np.int64], edges: NDArray[Any], values: NDArray[Any], label: str
) -> None:
    """values [len(edges) - 1, len(steps)] in the colours and on the scale that suit the name."""
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    values = np.ma.masked_invalid(values)
    sizes = np.ma.masked_equal(np.abs(values), 0).compressed()
    norm: Normalize
    if label in _SIGNED:
        reach = sizes.max(initial=0.0) or 1.0
        linear = float(np.quantile(sizes, 0.25)) if sizes.size else 0.1
        norm = SymLogNorm(max(linear, reach * 1e-3), vmin=-reach, vmax=reach)
    elif label in _COUNTS or not sizes.size:
        norm = Normalize(0, sizes.max(initial=0.0) or 1.0)
    else:
        norm = LogNorm(sizes.min(), max(sizes.max(), sizes.min() * 1.01))
        values = np.ma.masked_equal(values, 0)
    colours = "RdBu_r" if label in _SIGNED else "viridis"
    mesh = ax.pcolormesh(_edges(steps), edges, values, norm=norm, cmap=colours, rasterized=True)
    ax.figure.colorbar(mesh, ax=ax, label=label, pad=0.02)


def _edges(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where each step's column begins and ends; after a gap a column is as wide as the first."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middle = (steps[1:] + steps[:-1]) / 2
    edges: NDArray[np.float64] = np.concatenate(
        ([2 * steps[0] - middle[0]], middle, [2 * steps[-1] - middle[-1]])
    )
    return edges


def _value_axis(ax: Axes, scale: float, ends: Sequence[float] | NDArray[np.float64]) -> None:
    from matplotlib.scale import AsinhScale
    from matplotlib.ticker import AsinhLocator

    ax.set_yscale(AsinhScale(ax.yaxis, linear_width=scale))
    ax.yaxis.set_major_locator(AsinhLocator(scale, numticks=7))
    ax.set_ylim(float(ends[0]), float(ends[-1]))
    ax.set_ylabel("value")


def _label(ax: Axes, site: SiteSeries) -> None:
    ax.set_xlabel("step")
    ax.set_title(f"{site.name or '(root)'} {site.kind}", parse_math=False)
