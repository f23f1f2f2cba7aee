"""run.plot: figures by matplotlib that show every recorded step; notebooks show them too."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import label
from hookstats.runs.series import SiteSeries
from hookstats.show.distribution import QUANTILES, Distributions, distributions
from hookstats.show.overview import execution_order
from hookstats.show.palette import NONE, NONFINITE
from hookstats.stats.derived import STATISTICS
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hookstats.runs.run import Run

_ROWS = 96  # parts of a histogram's axis
_FAINTEST = 1e-6  # the least share of a step's values that is drawn


class Plots:
    """Figures of a run, from `Run.plot`.

    Magnitudes are drawn in viridis, values of either sign in RdBu; both palettes are safe for
    colour-blind eyes. A figure belongs to no window and to no pyplot state: save it with
    ``figure.savefig``, or let a notebook show it. If `ax` is given, the method draws into those
    axes and returns the figure that they belong to.

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
        ax: Axes | None = None,
    ) -> Figure:
        """One statistic of many tensors: layers in order of execution by steps.

        Magnitudes are drawn on a log scale. A cell is white where the step did not record the
        layer, red where the tensor has a NaN or an infinity, and grey where a magnitude is zero.
        Counts are drawn as they are, from zero.

        Args:
            statistic: one of `STATISTICS`, of the whole tensor.
            kind, names: the tensors, chosen as by ``run[names, kind]``.
        Raises:
            ValueError: `statistic` is none of `STATISTICS`.
            KeyError: no tensor matches.
        """
        _check(statistic)
        series = self._run.series(names, kind)
        steps = np.unique(np.concatenate([site.steps for site in series.values()]))
        known = list(self._run[int(steps[-1])])  # with kinds that tell the order
        ordered = (known[i] for i in execution_order(known))
        sites = [series[key] for key in dict.fromkeys((*ordered, *series)) if key in series]
        values = np.full((len(sites), len(steps)), np.nan)
        nonfinite = np.zeros(values.shape, bool)
        for row, site in enumerate(sites):
            columns = np.searchsorted(steps, site.steps)
            values[row, columns] = getattr(site, statistic)
            nonfinite[row, columns] = site.nan + site.posinf + site.neginf > 0
        height = min(max(1.5 + 0.18 * len(sites), 2.5), 12.0)
        figure, ax = _axes(ax, (7.0, height))
        edges = np.arange(len(sites) + 1) - 0.5
        _mesh(ax, steps, edges, values, statistic)
        if _scale(statistic) == "log":
            _mark(ax, steps, edges, values == 0, NONE)
        if _scale(statistic) != "count":
            _mark(ax, steps, edges, nonfinite, NONFINITE)
        every = -(-len(sites) // 60)
        shown = [label(site.name) for site in sites[::every]]
        ax.set_yticks(range(0, len(sites), every), shown, parse_math=False)
        ax.tick_params("y", labelsize=7)
        ax.invert_yaxis()
        ax.set_xlabel("step")
        ax.set_title(f"{statistic} of {kind}")
        return figure

    def histogram(self, name: str, kind: str = "output", *, ax: Axes | None = None) -> Figure:
        """The histogram of a tensor over the steps: each column has the shares of a step's values.

        Raises:
            KeyError: the run has no such tensor.
            ValueError: the run has no histograms, or the tensor never had a finite value.
        """
        return draw_histogram(self._site(name, kind), ax)

    def quantiles(self, name: str, kind: str = "output", *, ax: Axes | None = None) -> Figure:
        """Median, quartiles, 1 % and 99 % quantiles, minimum and maximum of a tensor by step.

        Raises:
            KeyError: the run has no such tensor.
            ValueError: the run has no histograms, or the tensor never had a finite value.
        """
        site = self._site(name, kind)
        found = _distributions(site)
        figure, ax = _axes(ax, (6.0, 3.5))
        low, first, median, third, high = found.quantiles
        colour = "#0a5fc4"
        span = f"{QUANTILES[0]:.0%} to {QUANTILES[-1]:.0%}"
        ax.fill_between(site.steps, low, high, color=colour, alpha=0.2, lw=0, label=span)
        ax.fill_between(site.steps, first, third, color=colour, alpha=0.35, lw=0, label="quartiles")
        ax.plot(site.steps, median, color=colour, label="median")
        finite = site.count > 0
        for ends, said in ((site.min, "min, max"), (site.max, None)):
            ax.plot(site.steps, np.where(finite, ends, np.nan), "k:", lw=0.8, label=said)
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
        ax: Axes | None = None,
    ) -> Figure:
        """One statistic per channel of a tensor, by step; dead channels, all zero, are grey.

        Raises:
            KeyError: the run has no such tensor.
            ValueError: `statistic` is none of `STATISTICS`, or the number of channels changed from
                step to step.
        """
        _check(statistic)
        site = self._site(name, kind)
        channels = site.channels
        values = np.asarray(getattr(channels, statistic), np.float64).T
        dead = channels.dead.T
        figure, ax = _axes(ax, (6.0, 3.5))
        edges = np.arange(len(values) + 1) - 0.5
        _mesh(ax, channels.steps, edges, np.where(dead, np.nan, values), statistic)
        _mark(ax, channels.steps, edges, dead, NONE)
        ax.invert_yaxis()
        ax.set_ylabel("channel")
        _label(ax, site)
        return figure

    def _site(self, name: str, kind: str) -> SiteSeries:
        """The one tensor that `name`, which must not be a glob, and `kind` choose."""
        found = self._run.series(name, kind)
        if len(found) > 1:
            raise ValueError(
                f"name = {name!r}, kind = {kind!r}: expected one tensor, {len(found)} match"
            )
        return next(iter(found.values()))


def draw_histogram(site: SiteSeries, ax: Axes | None = None) -> Figure:
    """What `Plots.histogram` draws of one site.

    Raises:
        ValueError: the site has no histograms, or never had a finite value.
        ImportError: matplotlib is not installed.
    """
    found = _distributions(site)
    figure, ax = _axes(ax, (6.0, 3.5))
    edges = found.axis.values(_ROWS + 1)
    # A fainter share is the part of a bin that lies beyond the extremes: no value is there.
    shares = np.where(found.shares > _FAINTEST, found.shares, np.nan)
    _mesh(ax, site.steps, edges, shares, "share of values")
    _value_axis(ax, found.axis.scale, edges)
    _label(ax, site)
    return figure


def _check(statistic: str) -> None:
    if statistic not in STATISTICS:
        raise ValueError(f"statistic = {statistic!r}: expected one of {', '.join(STATISTICS)}")


def _distributions(site: SiteSeries) -> Distributions:
    if site.bins is None or site.hist is None:
        raise ValueError(f"{site.name!r}, {site.kind!r}: expected a run with histograms (bins)")
    columns = [(np.flatnonzero(h).astype(np.int32), h[h > 0]) for h in site.hist]
    found = distributions(site.bins, columns, site.min, site.max, _ROWS)
    if found is None:
        raise ValueError(f"{site.name!r}, {site.kind!r}: expected finite values, found none")
    return found


def _axes(ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"run.plot needs matplotlib ({error}): pip install matplotlib") from error
    if ax is None:
        drawn: Any = Figure(figsize=size, layout="constrained")
        drawn._repr_png_ = partial(_png, drawn)  # notebooks show it without %matplotlib inline
        ax = drawn.subplots()
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _scale(label: str) -> str:
    """How a statistic is drawn, see `Statistic.scale`; all else is a magnitude."""
    return STATISTICS[label].scale if label in STATISTICS else "log"


def _mesh(
    ax: Axes, steps: NDArray[np.int64], edges: NDArray[Any], values: NDArray[Any], label: str
) -> None:
    """Draw values [len(edges) - 1, len(steps)] in the colours and on the scale of `label`."""
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    values = np.ma.masked_invalid(values)
    sizes = np.ma.masked_equal(np.abs(values), 0).compressed()
    norm: Normalize
    if _scale(label) == "signed":
        reach = sizes.max(initial=0.0) or 1.0
        linear = float(np.quantile(sizes, 0.25)) if sizes.size else 0.1
        norm = SymLogNorm(max(linear, reach * 1e-3), vmin=-reach, vmax=reach)
    elif _scale(label) == "count" or not sizes.size:
        norm = Normalize(0, sizes.max(initial=0.0) or 1.0)
    else:
        norm = LogNorm(sizes.min(), max(sizes.max(), sizes.min() * 1.01))
        values = np.ma.masked_equal(values, 0)
    colours = "RdBu_r" if _scale(label) == "signed" else "viridis"
    mesh = ax.pcolormesh(_edges(steps), edges, values, norm=norm, cmap=colours, rasterized=True)
    ax.figure.colorbar(mesh, ax=ax, label=label, pad=0.02)


def _mark(
    ax: Axes, steps: NDArray[np.int64], edges: NDArray[Any], cells: NDArray[np.bool_], colour: str
) -> None:
    """Fill the cells that are True, bool [len(edges) - 1, len(steps)], with one colour."""
    from matplotlib.colors import ListedColormap

    if cells.any():
        shown = np.where(cells, 1.0, np.nan)
        colours = ListedColormap([colour])
        ax.pcolormesh(_edges(steps), edges, shown, cmap=colours, rasterized=True)


def _edges(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """The edges of the steps' columns: halfway to the neighbours, the outer ones symmetric."""
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
    ax.set_title(f"{label(site.name)} {printable(site.kind)}", parse_math=False)
