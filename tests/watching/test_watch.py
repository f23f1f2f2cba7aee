"""watch(): kinds, names, steps, coverage, closing, and what it says of bad arguments."""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.expected import assert_stats
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD, Adam

from hookstats.records.record import StepRecord
from hookstats.runs.run import open_run
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def hook_dicts(model: nn.Module) -> list[dict[str, Any]]:
    """Copies of all hook dictionaries of all modules."""
    return [
        {name: dict(value) for name, value in vars(module).items() if name.endswith("_hooks")}
        | {"kwargs": dict(module._forward_pre_hooks_with_kwargs)}
        for module in model.modules()
    ]


def step_hooks(optimizer: torch.optim.Optimizer) -> list[dict[int, Any]]:
    return [
        dict(optimizer._optimizer_step_pre_hooks),
        dict(optimizer._optimizer_step_post_hooks),
    ]


def test_every_kind() -> None:
    torch.manual_seed(0)
    model = network(inplace=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 3, requires_grad=True)
    with watch(model, optimizer, KINDS) as w:
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
    assert Counter(kind for _, kind in latest) == {
        "input": 3,
        "output": 3,
        "grad_input": 3,
        "grad_output": 3,
        "param": 4,
        "param_grad": 4,
    }


def test_the_default_kinds_and_the_order_of_sites() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        assert list(w.latest) == [
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


def test_include_and_exclude() -> None:
    model = nn.Sequential(network(), network())
    with watch(model, include=["0", "0.*", "1.2.weight"], exclude=nn.ReLU) as w:
        names = {(row.name, row.kind) for row in w.coverage()}
    assert names == {
        *((name, kind) for name in ("0", "0.0", "0.2") for kind in ("output", "grad_output")),
        *((f"0.{i}.{name}", "param_grad") for i in (0, 2) for name in ("weight", "bias")),
        ("1.2.weight", "param_grad"),
    }


def test_steps_are_numbered_and_every_nth_is_recorded() -> None:
    model = network()
    optimizer = Adam(model.parameters())
    records: list[StepRecord] = []
    with watch(model, optimizer, every=3, sinks=[records.append]) as w:
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        assert w.latest.step == 6
        assert w.coverage().steps == 8
        row = w.coverage()["0", "output"]
        assert row.forwards == row.observed == 3
    assert [record.step for record in records] == [0, 3, 6]
    assert all((record.observed == 1).all() for record in records)


def test_several_optimizers_close_a_step_together() -> None:
    model = network()
    first, second = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    records: list[StepRecord] = []
    with watch(model, [first, second], kinds=("param_grad",), sinks=[records.append]) as w:
        for order in ((first, second), (second, first), (first, first, second)):
            model(torch.randn(2, 3)).sum().backward()
            for optimizer in order:
                optimizer.step()
        assert w.latest.step == 2
    observed = [dict(zip(r.keys(), r.observed.tolist(), strict=True)) for r in records]
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    assert observed[0] == observed[1] == {(name, "param_grad"): 1 for name in names}
    assert observed[2]["0.weight", "param_grad"] == 2
    assert observed[2]["2.weight", "param_grad"] == 1


def test_without_an_optimizer_step_observes_the_parameters() -> None:
    model = network()
    with watch(model, kinds=("param", "param_grad")) as w:
        model[2].weight.requires_grad_(False)
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        assert model[0].weight.grad is not None
        assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)
        assert_stats(w.latest["2.weight", "param"], [model[2].weight], 0)
        row = w.coverage()["2.weight", "param_grad"]
        assert row.skipped == {"requires no gradient": 1}


def test_a_step_closed_by_hand_beside_an_optimizer() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("output", "param")) as w:
        model(torch.randn(2, 3))
        w.step()
        assert [kind for _, kind in w.latest] == ["output"] * 3
        optimizer.step()
        assert [kind for _, kind in w.latest] == ["param"] * 4
        assert w.latest.step == 1


def test_parameters_that_are_not_the_optimizers() -> None:
    model = network()
    optimizer = SGD([*model[0].parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    with watch(model, optimizer, kinds=("param",)) as w:
        optimizer.step()
        assert [name for name, _ in w.latest] == ["0.weight", "0.bias"]
        optimizer.add_param_group({"params": model[2].parameters()})
        optimizer.step()
        assert len(w.latest) == 4


def test_sparse_gradients_are_skipped() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        assert w.coverage()["weight", "param_grad"].skipped == {"layout sparse_coo": 1}
        assert list(w.latest) == [("", "output"), ("", "grad_output")]


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
    assert {kind for _, kind in records[-1]} == {"output"}


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


def test_a_second_watch_of_a_model() -> None:
    model = network()
    with watch(model, kinds=("output",)) as a, watch(model, kinds=("output",), include="0") as b:
        model(torch.randn(2, 3))
        a.step()
        assert len(a.latest) == 3
        b.step()
        assert list(b.latest) == [("0", "output")]


def test_a_model_that_moves_to_another_dtype_and_shape() -> None:
    model = network()
    with watch(model, kinds=("output",)) as w:
        x = torch.randn(2, 3)
        a = model(x)
        model.double()
        b = model(torch.randn(7, 5, 3).double())
        w.step()
        assert_stats(w.latest["2", "output"], [a.double(), b], -1)
        assert w.latest.sites[2].shape == (7, 5, 2)
        assert w.latest.sites[2].dtype == "float64"


def test_a_lazy_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyConv1d(4, 1), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))
    with watch(model, kinds=KINDS, out=tmp_path / "run") as w:
        model(torch.randn(3, 2, 5)).sum().backward()
        w.step()
        channels = {site[:2]: site.channels for site in w.latest.sites}
        assert [channels[name, "output"] for name in "0123"] == [4, 4, 20, 2]
        assert channels["3.weight", "param_grad"] == 2


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


def test_a_sink_that_fails_does_not_touch_the_training() -> None:
    model = network()
    seen: list[int] = []

    def broken(record: StepRecord) -> None:
        raise RuntimeError("disk full")

    w = watch(model, sinks=[broken, lambda record: seen.append(record.step)])

    def train() -> None:
        model(torch.randn(2, 3)).sum().backward()
        w.step()
        assert w.latest.step == w.coverage().steps - 1

    with pytest.warns(RuntimeWarning, match="disk full"):
        train()
    train()
    assert seen == [0, 1]
    assert "disk full" in str(w.coverage())
    w.close()


def test_a_slow_sink_stalls_no_more_than_it_has_to() -> None:
    model = network()
    go_on = threading.Event()
    with watch(model, kinds=("output",), sinks=[lambda record: go_on.wait() and None]) as w:
        threading.Timer(0.3, go_on.set).start()
        for _ in range(4):
            model(torch.randn(2, 3))
            w.step()
        coverage = w.coverage()
        assert coverage.steps == 4
        assert coverage.stalls >= 1
        assert coverage["0", "output"].observed == 4
        assert w.latest.step == 3


def test_close_leaves_no_trace() -> None:
    model = network()
    model[0].register_forward_hook(lambda *args: None)
    model[1].register_forward_pre_hook(lambda m, a, k: None, with_kwargs=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = hook_dicts(model), step_hooks(optimizer)
    threads = threading.active_count()
    w = watch(model, optimizer, KINDS)
    assert hook_dicts(model) != before[0]
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    assert threading.active_count() == threads + 1
    loss = model(torch.randn(2, 3)).sum()
    w.close()
    w.close()
    assert (hook_dicts(model), step_hooks(optimizer)) == before
    assert threading.active_count() == threads
    loss.backward()
    assert w.latest.step == 0
    assert w.coverage().discarded == 6  # inputs, but for the first, are outputs: two of each...


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_close_leaves_no_trace_when_the_training_raised(where: str) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    before = hook_dicts(model), step_hooks(optimizer)

    def broken(*args: object) -> None:
        raise RuntimeError("of the user")

    def train() -> None:
        with watch(model, optimizer, KINDS):
            if where == "step":
                handles.append(optimizer.register_step_pre_hook(broken))
            y = model(torch.randn(2, 5 if where == "forward" else 3))
            if where == "backward":
                y.register_hook(broken)
            y.sum().backward()
            optimizer.step()

    handles: list[Any] = []
    with pytest.raises(RuntimeError):
        train()
    for handle in handles:
        handle.remove()
    assert (hook_dicts(model), step_hooks(optimizer)) == before


def test_a_closed_watch_says_so() -> None:
    w = watch(network())
    w.close()
    for use in (w.step, w.pause, w.resume, w.__enter__):
        with pytest.raises(ValueError, match="the watch is closed: expected an open one"):
            use()


def test_a_watch_goes_on_without_its_handle() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    records: list[StepRecord] = []
    done = threading.Event()
    watch(model, optimizer, sinks=[records.append, lambda record: done.set()])
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    assert done.wait(10)
    assert len(records[0]) == 10


def test_a_dropped_model_takes_its_watch_along() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    w = weakref.ref(watch(model, optimizer))
    del model, optimizer
    assert w() is None


class Unhookable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


def test_a_model_that_cannot_be_hooked_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Unhookable())
    before = hook_dicts(model)
    with pytest.raises(RuntimeError, match="no hooks here"):
        watch(model)
    assert hook_dicts(model) == before


@pytest.mark.parametrize("how", ["wrapper", "in place", "child"])
def test_a_compiled_model_is_refused(how: str) -> None:
    model: Any = network()
    if how == "wrapper":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"model: .* is compiled"):
        watch(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet"}, r"model = 'resnet': expected a torch.nn.Module"),
        ({"model": nn.Linear}, r"model = <class .*: expected a torch.nn.Module"),
        ({"optimizer": "sgd"}, r"optimizer has 'sgd': expected a torch.optim.Optimizer"),
        ({"optimizer": [None]}, r"optimizer has None: expected a torch.optim.Optimizer"),
        ({"optimizer": network().parameters()}, r"optimizer has <generator.*: expected"),
        ({"kinds": ()}, r"kinds = \(\): expected one or more of input, grad_input, .*param_grad"),
        ({"kinds": "output"}, r"kinds = 'output': expected one or more of"),
        ({"kinds": "output"}, r".* in a tuple; did you mean \('output',\)\?"),
        ({"out": b"run"}, r"out = b'run': expected a path, as a str or a pathlib.Path"),
        ({"out": 3}, r"out = 3: expected a path"),
        ({"out": "ru\0n"}, r"out = 'ru\\x00n': expected a path without NUL"),
        ({"channel_dim": True}, r"channel_dim = True: expected"),
        ({"kinds": 3}, r"kinds = 3: expected one or more of"),
        ({"kinds": ("grad_outputs",)}, r"kinds has 'grad_outputs': .*did you mean 'grad_output'\?"),
        ({"kinds": ("output", 7)}, r"kinds has 7: expected some of input"),
        (
            {"include": "1.*"},
            r"include = '1\.\*', exclude = None: nothing is left to watch.*Sequential.*'0'",
        ),
        ({"include": "0.wieght"}, r"include = '0\.wieght'.*available in .*: '0\.weight'"),
        (
            {"include": ["0", "0.wieght"]},
            r"include has '0\.wieght': expected a module or parameter of .*, such as '0\.weight'",
        ),
        (
            {"include": ["0", "0.weight"], "kinds": ("output",)},
            r"include has '0\.weight': expected a module of ",
        ),
        ({"include": nn.Conv2d}, r"include = <class .*Conv2d'>.*nothing is left to watch"),
        ({"exclude": "*"}, r"include = None, exclude = '\*': nothing is left"),
        ({"include": "*.weight", "kinds": ("output",)}, r"include.* kinds = \('output',\)"),
        ({"include": nn.ReLU, "kinds": ("param",)}, r"include.* kinds = \('param',\)"),
        ({"include": 3}, r"include = 3: expected a glob"),
        ({"exclude": [3]}, r"exclude = 3: expected a glob"),
        ({"bins": 64}, r"bins = 64: expected LinearBins, LogBins or None"),
        ({"channel_bins": "log"}, r"channel_bins = 'log': expected LinearBins"),
        ({"channel_dim": "last"}, r"channel_dim = 'last': expected"),
        ({"every": 0}, r"every = 0: expected an integer, 1 or more"),
        ({"every": 2.0}, r"every = 2\.0: expected an integer"),
        ({"every": True}, r"every = True: expected an integer"),
        ({"sinks": [3]}, r"sinks = \[3\]: expected a sequence of callables"),
        ({"sinks": 3}, r"sinks = 3: expected a sequence"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=f"^{message}"):
        watch(**{"model": model, **arguments})
    assert not any(module._forward_hooks for module in model.modules())


def test_one_optimizer_twice() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizer: the same one twice"):
        watch(model, (optimizer, optimizer))


def test_an_out_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    model = network()
    with pytest.raises(NotADirectoryError, match=re.escape(str(path))):
        watch(model, out=path)
    assert not model[0]._forward_hooks


def test_the_use_of_an_optimizer_in_the_backward() -> None:
    model = network()
    optimizers: dict[Tensor, torch.optim.Optimizer] = {
        p: SGD([p], lr=0.1) for p in model.parameters()
    }

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with watch(model, list(optimizers.values())) as w:
        for _ in range(2):
            model(torch.randn(2, 3)).sum().backward()
        assert w.coverage().steps == 2
        assert len(w.latest) == 10
        assert all(row.missing == 0 for row in w.coverage())


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("make", [lambda p: torch.optim.LBFGS(p, max_iter=2), Adam])
def test_an_optimizer_with_a_closure(
    make: Callable[[Any], torch.optim.Optimizer], by_name: bool
) -> None:
    model = network()
    optimizer: Any = make(model.parameters())
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss: Tensor = model(torch.randn(2, 3)).square().sum()
        loss.backward()
        return loss

    with watch(model, optimizer) as w:
        for step in range(3):
            calls = 0
            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert w.latest.step == step
            observed = dict(zip(w.latest.keys(), w.latest.observed.tolist(), strict=True))
            assert observed["2", "output"] == observed["2", "grad_output"] == calls
            assert model[0].weight.grad is not None
            assert_stats(w.latest["0.weight", "param_grad"], [model[0].weight.grad], 0)
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        if isinstance(optimizer, Adam):
            optimizer.step(None)
            assert w.latest.step == 3
