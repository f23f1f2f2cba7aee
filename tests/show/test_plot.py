"""run.plot: figures with the run's numbers, without pyplot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from support.samples import BINS, record_of, sample

import hookstats as hs
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import Bins
from hookstats.stats.derived import STATISTICS

STEPS = [0, 1, 2, 10, 11]


def write(out: Path, bins: Bins | None = BINS) -> hs.Run:
    """Two layers, `b` called before `a` and not in step 1; channel 1 of `a` is dead."""
    writer = RunWriter(out, {"bins": bins, "channel_bins": None})
    for step in STEPS:
        generator = torch.Generator().manual_seed(step)
        a = torch.randn(8, 3, generator=generator) * (1 + step)
        a[:, 1] = 0.0
        data = {("b", "output"): (torch.randn(6, 2, generator=generator), 1)} if step != 1 else {}
        data |= {("a", "output"): (a, 1)}
        data |= {("$x$", "param"): (a, 0)}  # no formula
        data |= {("a", "grad_output"): (a, 1), ("b", "grad_output"): (a, 1)}
        writer.write(record_of(data, step, bins=bins, channel_bins=None))
    writer.close()
    return hs.open_run(out)


@pytest.fixture
def run(tmp_path: Path) -> hs.Run:
    return write(tmp_path)


def mesh(figure: Figure, which: int = 0) -> np.ma.MaskedArray:
    """The values of a figure's coloured cells."""
    meshes = [c for c in figure.axes[0].collections if isinstance(c, QuadMesh)]
    return np.ma.masked_invalid(meshes[which].get_array())


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_the_heatmap_has_every_layer_and_step(run: hs.Run) -> None:
    figure = run.plot.heatmap()
    assert labels(figure) == ["b", "a"]
    shown = mesh(figure)
    assert shown.shape == (2, len(STEPS))
    for row, name in enumerate(("b", "a")):
        for column, step in enumerate(STEPS):
            if (name, "output") in run[step]:
                rms = float(run[step][name, "output"].per_tensor().rms)
                assert shown[row, column] == pytest.approx(rms)
            else:
                assert shown.mask[row, column]


def test_zeros_and_what_is_not_finite_are_marked(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, {"bins": None, "channel_bins": None})
    for step in range(3):
        bad = torch.ones(4)
        bad[0] = torch.nan if step == 1 else 1.0
        zero = torch.full((4,), float(step != 2))
        data = {("bad", "output"): (bad, None), ("zero", "output"): (zero, None)}
        writer.write(record_of(data, step, bins=None, channel_bins=None))
    writer.close()
    run = hs.open_run(tmp_path)
    figure = run.plot.heatmap()
    assert (mesh(figure, 1).filled(0.0) == [[0, 0, 0], [0, 0, 1]]).all()
    assert (mesh(figure, 2).filled(0.0) == [[0, 1, 0], [0, 0, 0]]).all()
    assert (mesh(run.plot.heatmap("mean"), 1).filled(0.0) == [[0, 1, 0], [0, 0, 0]]).all()
    assert len(run.plot.heatmap("nan").axes[0].collections) == 1


def test_gradients_are_in_order_of_execution_too(run: hs.Run) -> None:
    assert labels(run.plot.heatmap("amax", "grad_output")) == ["b", "a"]
    assert labels(run.plot.heatmap("mean", "grad_output", "a")) == ["a"]


def test_names_are_no_formulas(run: hs.Run) -> None:
    figure = run.plot.heatmap(kind="param")
    assert labels(figure) == ["$x$"]
    assert not figure.axes[0].get_yticklabels()[0].get_parse_math()
    assert not run.plot.channels("$x$", "param").axes[0].title.get_parse_math()


@pytest.mark.check
@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_statistic_is_drawn(run: hs.Run, statistic: str, tmp_path: Path) -> None:
    run.plot.heatmap(statistic).savefig(tmp_path / "figure.png")
    run.plot.channels("a", "output", statistic).savefig(tmp_path / "figure.png")


def test_histogram_columns_are_shares(run: hs.Run, tmp_path: Path) -> None:
    figure = run.plot.histogram("a")
    np.testing.assert_allclose(mesh(figure).sum(0), 1.0, atol=1e-3)
    figure.savefig(tmp_path / "figure.pdf")


def test_quantiles_are_those_of_the_run(run: hs.Run, tmp_path: Path) -> None:
    figure = run.plot.quantiles("a")
    (median,) = (line for line in figure.axes[0].lines if line.get_label() == "median")
    expected = [float(run[n]["a", "output"].tensor_hist.quantile(0.5)) for n in STEPS]
    np.testing.assert_allclose(np.asarray(median.get_ydata()), expected, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(median.get_xdata()), STEPS)
    figure.savefig(tmp_path / "figure.png")


def test_dead_channels_are_told_from_quiet_ones(run: hs.Run) -> None:
    figure = run.plot.channels("a")
    assert mesh(figure).mask[1].all()
    assert not mesh(figure).mask[[0, 2]].any()
    assert (mesh(figure, 1).filled(0.0) == [[0.0], [1.0], [0.0]]).all()


def test_a_figure_is_drawn_where_it_is_wanted(run: hs.Run) -> None:
    figure = Figure()
    ax = figure.subplots()
    assert run.plot.channels("a", ax=ax) is figure
    assert ax.get_title() == "a output"


def test_a_notebook_shows_a_figure_without_a_backend(run: hs.Run) -> None:
    figure: Any = run.plot.heatmap()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_bad_arguments_are_named(run: hs.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="statistic = 'median': expected one of count, nan"):
        run.plot.heatmap("median")
    with pytest.raises(
        ValueError, match=r"name = '\*', kind = 'output': expected one tensor, 2 match"
    ):
        run.plot.histogram("*")
    with pytest.raises(KeyError, match="'c'"):
        run.plot.quantiles("c")
    with pytest.raises(ValueError, match=r"expected a run with histograms"):
        write(tmp_path / "none", bins=None).plot.histogram("a")


@pytest.mark.check
@pytest.mark.filterwarnings("ignore:Glyph")  # what a font lacks is not our matter
def test_odd_sites_are_drawn(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {"bins": BINS, "channel_bins": None})
    for step in range(2):
        writer.write(sample(step, channel_bins=None))
    writer.close()
    run = hs.open_run(tmp_path / "run")
    for kind in ("output", "param", "input", "grad_output"):
        run.plot.heatmap(kind=kind).savefig(tmp_path / "figure.png")
    run.plot.channels("", "output").savefig(tmp_path / "figure.png")
    with pytest.raises(ValueError, match="expected finite values"):
        run.plot.histogram("encoder.0.réseau", "grad_output")


@pytest.mark.check
def test_no_pyplot_and_a_word_where_matplotlib_is_missing(run: hs.Run) -> None:
    code = (
        "import sys, hookstats as hs\n"
        "run = hs.open_run(sys.argv[1])\n"
        "run.plot.heatmap()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "for name in [m for m in sys.modules if m.startswith('matplotlib')]:\n"
        "    sys.modules[name] = None\n"
        "try:\n"
        "    run.plot.heatmap()\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, run.path], capture_output=True, text=True, check=True
    )
    assert "pip install matplotlib" in done.stdout
