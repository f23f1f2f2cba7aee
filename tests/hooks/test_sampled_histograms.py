"""Sampled histograms of a watched model: hooks, compiled graphs, runs and ranks count alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import MARKS, assert_same, needs_gradients, train
from support.modules import take_step
from support.samples import record_of
from torch import Tensor, nn
from torch.optim import SGD

from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.ranks import Merger
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.stats.histogram import Histogram
from hookstats.watching.watch import watch

pytestmark = MARKS

BINS = LogBins(sample=8)
CHANNEL_BINS = LinearBins(8, -1.0, 1.0, sample=4)


def model_of(width: int = 96) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def batches(steps: int, width: int = 96) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(64, width) for _ in range(steps)]


def inputs() -> Tensor:
    return torch.randn(64, 96)


SETTINGS: dict[str, Any] = {"include": "*", "bins": BINS, "channel_bins": CHANNEL_BINS, "rules": ()}


def counts(hist: Histogram | None) -> list[list[int]]:
    assert hist is not None
    found: list[list[int]] = hist.slot_counts.tolist()
    return found


@pytest.mark.usefixtures("hooks_in")
def test_hooks_count_what_the_step_says() -> None:
    seen: dict[int, Tensor] = {}
    model = model_of()
    optimizer = SGD(model.parameters(), lr=0.1)
    model[1].register_forward_hook(lambda m, args, y: seen.__setitem__(len(seen), y.detach()))
    with watch(model, optimizer, bins=BINS, channel_bins=CHANNEL_BINS, rules=()) as w:
        w.set_step(7)
        for step, x in enumerate(batches(3)):
            take_step(optimizer, model(x).square().mean())
            stats, y = w.latest["1", "output"], seen[step]
            whole = channel_stats(y, None, BINS, step=7 + step).hist
            channels = channel_stats(y, -1, CHANNEL_BINS, step=7 + step).hist
            assert counts(stats.tensor_hist) == counts(whole)
            assert counts(stats.hist) == counts(channels)
            assert stats.tensor_hist is not None
            assert int(stats.tensor_hist.counted) == y.numel() // 8
            assert int(stats.tensor_hist.count) == y.numel()
            weight = w.latest["0.weight", "param_grad"].tensor_hist
            assert weight is not None
            assert int(weight.counted) == 96 * 96 // 8


@needs_gradients
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_graphs_see_each_step(backend: str) -> None:
    """By one graph, the elements are counted that hooks count."""
    given: dict[str, Any] = {"inputs": inputs, "steps": 3, "settings": SETTINGS}
    compiled = train(model_of(), backend, **given)
    eager = train(model_of(), None, **given)
    assert compiled.graphs == 1
    of_steps = []
    for got, expected in zip(compiled.records, eager.records, strict=True):
        assert_same(got, expected)
        for site in expected:
            assert_counts(got[site].tensor_hist, expected[site].tensor_hist)
            assert_counts(got[site].hist, expected[site].hist)
        of_steps.append(counts(got["0.weight", "param_grad"].tensor_hist))
    assert of_steps[0] != of_steps[1] != of_steps[2]


def assert_counts(got: Histogram | None, expected: Histogram | None) -> None:
    """As many values were counted; a few may lie in the next slot, since compiled code rounds."""
    assert got is not None
    assert expected is not None
    assert torch.equal(got.counted, expected.counted)
    assert torch.equal(got.count, expected.count)
    moved = (got.slot_counts - expected.slot_counts).abs().sum()
    assert int(moved) <= 2 + expected.counted.sum() / 100


def test_runs_keep_what_was_counted(tmp_path: Path) -> None:
    settings = {**SETTINGS, "out": tmp_path / "run"}
    trained = train(model_of(), None, inputs=inputs, settings=settings)
    assert trained.watch is not None
    trained.watch.close()
    run = open_run(tmp_path / "run")
    assert run.bins is not None
    assert run.bins.sample == 8
    for record in trained.records:
        for site in record:
            got, expected = run[record.step][site], record[site]
            assert counts(got.tensor_hist) == counts(expected.tensor_hist)
            assert got.tensor_hist is not None
            assert int(got.tensor_hist.count) == int(got.count.sum())


@pytest.mark.parametrize("samples", [(8, 1), (1, 8)])
def test_a_run_that_is_continued_with_another_sample_weighs(
    tmp_path: Path, samples: tuple[int, int]
) -> None:
    model, x = nn.ReLU(), torch.arange(204_800.0) / 102_400
    settings: dict[str, Any] = {"kinds": ("output",), "channel_bins": None, "rules": ()}
    for sample in samples:
        bins = LinearBins(2, 0.0, 2.0, sample=sample)
        with watch(model, bins=bins, **settings, out=tmp_path, append=True) as w:
            model(x)
            w.step()
    run = open_run(tmp_path)
    assert run.bins is not None
    assert run.bins.sample == 8
    hists = [run[step]["", "output"].tensor_hist for step in run.steps]
    assert [int(hist.counted) for hist in hists if hist] == [204_800 // n for n in samples]
    merged = Merger()([run[step] for step in run.steps])["", "output"].tensor_hist
    assert merged is not None
    assert merged.slot_counts.tolist() == [[0, 115_200, 115_200, 0]]


def test_ranks_with_other_shares_weigh_by_their_values() -> None:
    """As "auto" counts small tensors whole, and a sample of large ones."""
    bins = LinearBins(2, 0.0, 2.0, sample="auto")
    few, many = torch.zeros(60_000), torch.ones(600_000)
    parts = [
        record_of({("a", "output"): (x, None)}, rank=rank, bins=bins, channel_bins=bins)
        for rank, x in enumerate((few, many))
    ]
    for part in parts:  # each of a batch
        assert part["a", "output"].tensor_hist is not None
    stats = Merger()(parts)["a", "output"]
    for hist in (stats.tensor_hist, stats.hist):
        assert hist is not None
        counted = int(hist.counted)
        assert counted == 60_000 + 64 * -(-600_000 // 64 // 9)
        zeros, ones = hist.counts[0].tolist()
        assert zeros == round(counted / 11)
        assert ones == counted - zeros
