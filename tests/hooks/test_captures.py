"""Graphs that are captured by hand: their replays are recorded, in the steps that are due."""

from __future__ import annotations

import pytest
import torch
from support.compiled import dropout_network
from support.replay import capturing, use_python_hooks
from torch import nn
from torch.optim import SGD

from hookstats.buffers import graph_states
from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

KINDS = ("input", "output", "grad_output", "param_grad")


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_python_hooks(monkeypatch)
    monkeypatch.setattr(graph_states, "_lasting", {})


def network() -> nn.Module:
    return dropout_network().eval()  # no dropout


def assert_equal(got: StepRecord, expected: StepRecord) -> None:
    assert got.step == expected.step
    assert sorted(got.keys()) == sorted(expected.keys())
    for key in expected:
        mine, theirs = got[key], expected[key]
        for name in ("count", "mean", "rms", "min", "max", "zero"):
            assert getattr(mine, name).tolist() == getattr(theirs, name).tolist(), (key, name)
        assert mine.tensor_hist is not None
        assert theirs.tensor_hist is not None
        assert mine.tensor_hist.counts.tolist() == theirs.tensor_hist.counts.tolist()


@pytest.mark.parametrize("whole", [False, True], ids=["backward", "step"])
@pytest.mark.parametrize("batches", [1, 2])
def test_replays_are_recorded_as_eager_steps_are(
    monkeypatch: pytest.MonkeyPatch, whole: bool, batches: int
) -> None:
    """A whole step in the graph, or all but the optimizer's; a graph that is captured once."""
    models = network(), network()
    optimizers = [SGD(model.parameters(), lr=0.01) for model in models]
    x = torch.randn(2, 5, 3)

    def forward_and_backward(of: int) -> None:
        models[of](x).square().sum().backward()

    def step(of: int) -> None:
        optimizers[of].zero_grad(set_to_none=False)
        for _ in range(batches):
            forward_and_backward(of)
        optimizers[of].step()

    with (
        watch(models[0], optimizers[0], kinds=KINDS, every=2) as w,
        watch(models[1], optimizers[1], kinds=KINDS, every=2) as expected,
    ):
        for of in (0, 0, 1, 1):
            step(of)
        optimizers[0].zero_grad(set_to_none=False)
        with capturing(monkeypatch) as graph:  # the block runs, as a first replay
            step(0) if whole else forward_and_backward(0)
        (buffer,) = w._buffers.devices.values()
        assert len(graph_states._lasting) == len(buffer.graphs._states)
        where = [graph.state.moments.data_ptr() for graph in buffer.graphs._states.values()]
        for number in range(2, 7):
            if whole:
                if number > 2:
                    graph.replay()
                w.step()
            else:
                if number > 2:
                    optimizers[0].zero_grad(set_to_none=False)
                for _ in range(batches - (number == 2)):
                    graph.replay()
                optimizers[0].step()
            step(1)
            assert where == [g.state.moments.data_ptr() for g in buffer.graphs._states.values()]
            assert_equal(w.latest, expected.latest)
            x.normal_()
        assert w.latest.step == 6
        rows = {(row.name, row.kind): row for row in w.coverage()}
        for row in expected.coverage():
            mine = rows[row.name, row.kind]
            # The call while the graph is captured is skipped, and its replays count.
            in_graph = whole or row.kind != "param_grad"
            assert ("CUDA graph capture" in mine.skipped) == in_graph
            assert mine.observed == row.observed
            assert mine.missing == row.missing == 0
    for mine, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(mine, theirs)
