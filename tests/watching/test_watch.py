"""watch(): kinds, names, steps, coverage, and where its records go."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.modules import network, take_step
from torch import Tensor, nn
from torch.optim import SGD, Adam

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def test_every_kind() -> None:
    torch.manual_seed(0)
    model = network(inplace=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 3, requires_grad=True)
    with watch(model, optimizer, kinds=KINDS) as w:
        h0 = model[0](x * 1)
        h1 = model[1](h0)
        y = model[2](h1)
        loss = y.square().sum()
        gradients = torch.autograd.grad(loss, (h0, h1, y), retain_graph=True)
        # The step so far has had a backward: close it, and do the whole once more.
        w.step()
        model(x * 1).square().sum().backward()
        values = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        latest = w.latest
    assert latest.step == 1
    outputs = dict(zip("012", (h0, h1, y), strict=True))
    inputs = dict(zip("012", (x, h0, h1), strict=True))
    for i, name in enumerate("012"):
        assert_stats(latest[name, "output"], [outputs[name]], -1)
        assert_stats(latest[name, "input"], [inputs[name]], -1)
        assert_stats(latest[name, "grad_output"], [gradients[i]], -1)
        if i > 0:
            assert_stats(latest[name, "grad_input"], [gradients[i - 1]], -1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_stats(latest[name, "param"], [values[name]], 0)
        assert_stats(latest[name, "param_grad"], [parameter.grad], 0)
        change = parameter.detach() - values[name]
        assert_stats(latest[name, "update"], [change], 0)
    assert Counter(kind for _, kind in latest) == {
        "input": 3,
        "output": 3,
        "grad_input": 3,
        "grad_output": 3,
        "param": 4,
        "param_grad": 4,
        "update": 4,
        "checksum": 4,
    }


def test_the_default_kinds_and_the_order_of_sites() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        assert list(w.latest) == [
            ("", "input"),
            ("0", "output"),
            ("1", "output"),
            ("2", "output"),
            ("2", "grad_output"),
            ("1", "grad_output"),
            ("0", "grad_output"),
            ("0.weight", "param_grad"),
            ("0.bias", "param_grad"),
            ("2.weight", "param_grad"),
            ("2.bias", "param_grad"),
        ]


def test_calls_of_a_module_in_a_step_are_merged() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    xs = [torch.randn(4, 3), torch.randn(2, 3)]
    with watch(model, kinds=("output",)) as w:
        outputs = []
        for x in xs:  # as in gradient accumulation
            y = model[0](x)
            outputs += [y, model[2](model[1](y))]
        w.step()
        assert list(w.latest) == [("0", "output"), ("1", "output")]
        assert w.latest.observed.tolist() == [4, 2]
        assert_stats(w.latest["0", "output"], outputs, -1)


def test_leaves_of_inputs_and_outputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4)
            self.mix = Mix()

        def forward(self, x: Tensor) -> Tensor:
            y, _ = self.lstm(x)
            out = self.mix(y, [x, None], mask=y > 0, scale=y.mean())
            total: Tensor = out["logits"].sum() + out["a b"][1]
            return total

    class Mix(nn.Module):
        def forward(self, y: Tensor, extra: Any, *, mask: Tensor, scale: Tensor) -> Any:
            return {"logits": y * scale * mask, "a b": (extra[0], y.square().sum())}

    model = Model()
    with watch(model, kinds=("input", "output", "grad_input", "grad_output")) as w:
        model(torch.randn(5, 2, 3)).backward()
        w.step()
        kinds: dict[str, set[str]] = {"lstm": set(), "mix": set()}
        for name, kind in w.latest:
            kinds[name].add(kind)
        assert kinds["lstm"] == {"input", "output", "output[1][0]", "output[1][1]", "grad_output"}
        assert kinds["mix"] == {
            *("input", "input[1][0]", "input.scale", "grad_input", "grad_input.scale"),
            *("output.logits", "output['a b'][0]", "output['a b'][1]"),
            *("grad_output.logits", "grad_output['a b'][1]"),
        }
        coverage = w.coverage()
        assert coverage["mix", "input.mask"].skipped == {"dtype bool": 1}
        assert coverage["mix", "grad_output['a b'][0]"].skipped == {"requires no gradient": 1}
        assert coverage["lstm", "grad_output[1][0]"].missing == 1
        info = {site[:2]: site for site in w.latest.sites}
        assert info["mix", "input.scale"].channel_dim is None
        assert info["lstm", "output"].shape == (5, 2, 4)


def test_channel_dim() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.Flatten(0, 1))
    x = torch.randn(2, 3, 5)

    def channels(channel_dim: Any) -> list[tuple[int | None, int]]:
        with watch(model, kinds=("output", "param"), channel_dim=channel_dim) as w:
            model(x)
            w.step()
            return [(site.channel_dim, site.channels) for site in w.latest.sites]

    parameters: list[tuple[int | None, int]] = [(0, 4), (0, 4)]
    assert channels("auto") == [(1, 4), (2, 5), (1, 5), *parameters]
    assert channels(0) == [(0, 2), (0, 2), (0, 8), *parameters]
    assert channels(None) == [(None, 1)] * 3 + parameters
    assert channels({nn.ReLU: 1}) == [(1, 4), (1, 4), (1, 5), *parameters]


def test_histograms() -> None:
    model = nn.Linear(3, 4)
    linear, log = LinearBins(10, -1, 1), LogBins(1)
    for bins, channel_bins in ((LogBins(), None), (linear, log), (None, linear), (None, None)):
        with watch(model, kinds=("output",), bins=bins, channel_bins=channel_bins) as w:
            y = model(torch.randn(7, 3))
            w.step()
            stats = w.latest["", "output"]
            assert_stats(stats, [y], -1)
            assert (None if stats.hist is None else stats.hist.bins) == channel_bins
            assert (None if stats.tensor_hist is None else stats.tensor_hist.bins) == bins


def test_steps_are_numbered_and_every_nth_is_recorded() -> None:
    model = network()
    optimizer = Adam(model.parameters())
    records: list[StepRecord] = []
    with watch(model, optimizer, every=3, sinks=[records.append]) as w:
        for _ in range(8):
            take_step(optimizer, model(torch.randn(2, 3)).sum())
        assert w.latest.step == 6
        assert w.coverage().steps == 8
        row = w.coverage()["0", "output"]
        assert row.forwards == row.observed == 3
    assert [record.step for record in records] == [0, 3, 6]
    assert all((record.observed == 1).all() for record in records)


def test_a_step_in_which_nothing_was_observed_is_recorded_as_such() -> None:
    model = network()
    with watch(model, kinds=("output",)) as w:
        model(torch.randn(2, 3))
        w.step()
        w.step()
        assert w.latest.step == 1
        assert len(w.latest) == 0


def test_a_failed_batch_stays_in_its_step() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)

    def broken(*args: object) -> None:
        raise RuntimeError("of the user")

    with watch(model, optimizer) as w:
        handle = model[1].register_forward_hook(broken)
        with pytest.raises(RuntimeError, match="of the user"):
            model(torch.randn(2, 3))
        handle.remove()
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        latest = w.latest
        observed = dict(zip(latest.keys(), latest.observed.tolist(), strict=True))
        assert observed["0", "output"] == observed["1", "output"] + 0 == 2
        assert observed["2", "output"] == 1
        row = w.coverage()["0", "grad_output"]
        assert (row.forwards, row.observed, row.missing) == (2, 1, 1)


def test_pause_and_resume() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    records: list[StepRecord] = []
    w = watch(model, optimizer, sinks=[records.append])

    def train() -> None:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()

    train()
    w.pause()
    train()
    train()
    w.resume()
    train()
    late = model(torch.randn(2, 3)).sum()
    w.pause()
    late.backward()
    optimizer.step()  # has seen outputs before the pause
    row = w.coverage()["0", "grad_output"]
    assert (row.forwards, row.observed, row.missing) == (3, 2, 0)
    assert row.skipped == {"step not recorded": 1}
    w.close()
    assert [record.step for record in records] == [0, 3, 4]
    assert {kind for _, kind in records[-1]} == {"input", "output"}


def test_latest() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    w = watch(model, optimizer)
    with pytest.raises(RuntimeError, match="no step is recorded yet; expected a call of opt"):
        _ = w.latest
    for step in range(5):
        y = model(torch.randn(2, 3))
        y.sum().backward()
        optimizer.step()
        assert w.latest.step == step
        assert_stats(w.latest["2", "output"], [y], -1)
    with pytest.raises(KeyError, match="did you mean"):
        w.latest["2.weigth", "param_grad"]
    w.close()
    assert w.latest.step == 4


def test_coverage_reads_well_and_goes_into_json() -> None:
    model = network()
    with watch(model, kinds=("output", "grad_output")) as w:
        model(torch.randn(2, 3)).sum().backward()
        with torch.no_grad():
            model(torch.randn(2, 3))
        w.step()
        coverage = w.coverage()
    assert len(coverage) == 6
    for row in coverage:
        assert row.forwards == 2 == row.observed + row.missing + sum(row.skipped.values())
    assert json.loads(json.dumps(coverage.to_dict()))["rows"][0]["name"] == "0"
    lines = str(coverage).splitlines()
    assert lines[0].split() == [
        *("name", "kind", "forwards", "observed", "missing", "backwards", "skipped")
    ]
    assert lines[2].split(maxsplit=6) == [
        *("0", "grad_output", "2", "1", "0", "1", "requires no gradient: 1")
    ]
    assert lines[-1] == "1 steps, 0 stalls, 0 discarded"
    with pytest.raises(KeyError):
        coverage["3", "output"]


def test_representations_say_what_they_hold() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, rules="default") as w:
        for _ in range(2):
            model(torch.full((2, 3), torch.nan)).sum().backward()
            optimizer.step()
        coverage = w.coverage()
        alerts = len(w.alerts)
        assert alerts
        name, sites = type(model).__name__, len(coverage)
        assert repr(w) == f"Watch({name}: {sites} sites, 2 steps, {alerts} alerts)"
        w.pause()
        assert repr(w).endswith(" alerts, paused)")
        observed = sum(row.observed for row in coverage)
        assert repr(coverage) == (
            f"Coverage({sites} sites, 2 steps, {observed} tensors observed, 0 sites disabled, "
            "0 failures)"
        )
        assert str(coverage).startswith("name ")
    assert repr(w).endswith(" alerts, closed)")


def test_the_run_directory(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    bins = LinearBins(8, -2, 2)
    dims = {nn.Linear: 1}
    w = watch(model, optimizer, channel_bins=bins, channel_dim=dims, out=tmp_path / "run")
    records = []
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        records.append(w.latest)
    w.close()
    run = open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2]
    for record in records:
        assert run[record.step].keys() == record.keys()
        for key in record:
            assert torch.equal(run[record.step][key].tallies, record[key].tallies)
    assert run.coverage == json.loads(json.dumps(w.coverage().to_dict()))
    assert run.header["model"] == "Sequential"
    assert run.header["modules"] == {"0": "Linear", "1": "ReLU", "2": "Linear"}
    assert run.header["parameters"]["0.weight"] == [4, 3]
    assert run.header["channel_dim"] == {"Linear": 1}
    with pytest.raises(FileExistsError, match="holds another run"):
        watch(model, out=tmp_path / "run")
    assert not model[0]._forward_hooks
