"""watch(..., moments=4): skewness and kurtosis of all that is watched are those of scipy."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
from scipy import stats as scipy_stats
from support.compiled import needs_gradients
from support.everything import everything
from torch import Tensor, nn
from torch.optim import SGD

import hookstats as hs
from hookstats.cli import main
from hookstats.records.keys import Key
from hookstats.records.record import StepRecord
from hookstats.show.overview import overview

OF: dict[str, Callable[..., Any]] = {
    "skewness": scipy_stats.skew,
    "kurtosis": scipy_stats.kurtosis,
}
WATCHED = ("input", "output", "grad_output", "param", "param_grad")
MICRO_BATCHES = 3
Seen = dict[Key, list[Tensor]]


class Net(nn.Module):
    """A convolution, and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.act = nn.ReLU()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv(x)).flatten(2).mean(2)
        return self.act(self.head(x) + 0.1)


def network() -> Net:
    torch.manual_seed(3)
    return Net()


def data() -> Tensor:
    return torch.randn(24, 2, 6, 6).exp()


def train(
    call: Callable[[int, Tensor], Tensor], optimizer: SGD, steps: int = 2
) -> list[list[bytes]]:
    """Train in micro-batches, where `call` takes the number of each; the parameters by step."""
    torch.manual_seed(1)
    parameters = []
    for _ in range(steps):
        for i in range(MICRO_BATCHES):
            call(i, data()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tensors = optimizer.param_groups[0]["params"]
        parameters.append([p.detach().numpy().tobytes() for p in tensors])
    return parameters


def seen_in_training() -> tuple[list[Seen], list[list[bytes]]]:
    """Every tensor of a training that hookstats does not watch, by step; and its parameters."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.01)
    steps: list[Seen] = [defaultdict(list)]

    def after(name: str, args: tuple[Tensor, ...], y: Tensor) -> None:
        steps[-1][name, "input"].append(args[0].detach().clone())
        steps[-1][name, "output"].append(y.detach().clone())
        y.register_hook(lambda g: steps[-1][name, "grad_output"].append(g.clone()))

    def before_step(*_: object) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            steps[-1][name, "param"].append(parameter.detach().clone())
            steps[-1][name, "param_grad"].append(parameter.grad.clone())

    def after_step(*_: object) -> None:
        steps.append(defaultdict(list))

    for name, module in model.named_children():
        module.register_forward_hook(lambda _, args, y, name=name: after(name, args, y))
    optimizer.register_step_pre_hook(before_step)
    optimizer.register_step_post_hook(after_step)
    parameters = train(lambda _, x: model(x), optimizer)
    return steps[:-1], parameters


def assert_scipys(got: Any, values: Any, name: str, where: object) -> None:
    """Assert that `got` [C] is what scipy has for `values` [C, n]."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # scipy's, where all values are equal
        expected = OF[name](values, axis=1, bias=True)
    assert (np.isnan(got) == np.isnan(expected)).all(), where
    error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
    assert np.nanmax(error, initial=0.0) <= 1e-4, where


def assert_record(record: StepRecord, seen: Seen) -> None:
    """Assert that a record has the skewness and kurtosis of what was seen, and of nothing else."""
    assert set(record) == set(seen)
    for key in record:
        dim = 0 if key[1].startswith("param") else 1
        rows = [x.double().movedim(dim, 0).reshape(x.shape[dim], -1) for x in seen[key]]
        values = torch.cat(rows, 1).numpy()
        for name in OF:
            assert_scipys(getattr(record[key], name).numpy(), values, name, (key, name))
            whole = getattr(record[key].per_tensor(), name).numpy()
            assert_scipys(whole, values.reshape(1, -1), name, (key, name, "whole"))


@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize("backend", [None, pytest.param("aot_eager", marks=needs_gradients)])
def test_calls_and_micro_batches_merge_into_what_scipy_has_for_all(backend: str | None) -> None:
    """Compiled, the first micro-batch runs without the graph, and its states merge with those of
    the graph."""
    steps, parameters = seen_in_training()
    model = network()
    optimizer = SGD(model.parameters(), lr=0.01)
    records: list[StepRecord] = []
    with hs.watch(model, optimizer, WATCHED, sinks=[records.append], moments=4) as watch:
        compiled: Any = model if backend is None else torch.compile(model, backend=backend)
        trained = train(lambda i, x: (compiled if i else model)(x), optimizer)
        coverage = watch.coverage()
    assert trained == parameters  # not changed by a bit
    assert coverage["act", "output"].observed == 2 * 2 * MICRO_BATCHES
    assert len(records) == len(steps)
    for record, seen in zip(records, steps, strict=True):
        assert record["act", "grad_output"].moments.shape == (4, 7)
        assert_record(record, seen)


@pytest.mark.parametrize("moments", [2, 4])
def test_a_model_of_everything_has_as_many_columns_as_were_asked_for(moments: int) -> None:
    make, shape = everything()
    with hs.watch(make, kinds=("input", "output", "grad_output"), moments=moments) as watch:
        make(torch.randn(shape)).sum().backward()
        watch.step()
        assert watch.latest.moments.shape[1] == {2: 5, 4: 7}[moments]
        assert watch.latest.whole.higher == (moments == 4)
        assert not any(row.error for row in watch.coverage())


@pytest.fixture
def run(tmp_path: Path) -> hs.Run:
    """A run with a first step in which nothing was watched."""
    model = nn.Linear(3, 2)
    with hs.watch(model, kinds=("output",), out=tmp_path / "run", moments=4) as watch:
        for step in range(3):
            if step:
                model(values(step))
            watch.step()
    return hs.open_run(tmp_path / "run")


def values(step: int) -> Tensor:
    return torch.randn(200, 3, generator=torch.Generator().manual_seed(step)).exp()


def test_a_run_gives_them_back_by_series_table_and_export(
    run: hs.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.header["moments"] == 4
    assert run[0].moments.shape == (0, 7)
    site = run["*", "output"]["", "output"]
    assert site.steps.tolist() == [1, 2]
    record = run[2]["", "output"]
    for name in OF:
        whole = getattr(site, name)
        np.testing.assert_array_equal(getattr(site.channels, name)[1], getattr(record, name))
        np.testing.assert_allclose(whole[1], getattr(record.per_tensor(), name), rtol=1e-12)
    row = run.table().to_pylist()[-1]
    assert (row["m3"], row["m4"]) == tuple(record.moments[:, 5:].T.tolist()[i] for i in (0, 1))
    assert main(["export", str(run.path), "-o", str(tmp_path / "run.csv")]) == 0
    exported = pyarrow.csv.read_csv(tmp_path / "run.csv")
    np.testing.assert_array_equal(exported["kurtosis"].to_numpy(), site.kurtosis)
    view = overview(run, cells=2 * len(run[run.steps[-1]]))  # of steps with and without a tensor
    assert view.moments.shape == (2, 1, 7)
    capsys.readouterr()
    assert main(["show", str(run.path)]) == 0
    header, line = capsys.readouterr().out.splitlines()[2:4]
    shown = dict(zip(header.split(), line.split(), strict=True))
    assert float(shown["skewness"]) == pytest.approx(site.skewness[1], rel=1e-2)
    assert float(shown["kurtosis"]) == pytest.approx(site.kurtosis[1], rel=1e-2)


def test_who_does_not_ask_has_no_column_more(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with hs.watch(model, kinds=("output",), out=tmp_path) as watch:
        model(values(0))
        watch.step()
        assert watch.latest.moments.shape == (2, 5)
        with pytest.raises(ValueError, match="ask with moments=4"):
            watch.latest["", "output"].skewness  # noqa: B018
    run = hs.open_run(tmp_path)
    assert run.header["moments"] == 2
    assert not {"m3", "m4", "tensor_m3", "tensor_m4"} & set(run.schema.names)


@pytest.mark.parametrize("moments", [3, 5, True, "4", None, 4.0])
def test_other_moments_are_refused(moments: Any) -> None:
    with pytest.raises(ValueError, match=f"moments = {moments!r}: expected 2 or 4"):
        hs.watch(nn.Linear(2, 2), moments=moments)


@pytest.mark.parametrize(("first", "then"), [(2, 4), (4, 2), (None, 4)])
def test_other_moments_do_not_continue_a_run(tmp_path: Path, first: int | None, then: int) -> None:
    """None: the run's header does not say, as those of before did not."""
    model = nn.Linear(2, 2)
    with hs.watch(model, out=tmp_path, moments=first or 2) as watch:
        state = watch.state_dict()
    if first is None:
        del state["settings"]["moments"]
        path = tmp_path / "run-00000.json"
        content = json.loads(path.read_text())
        del content["header"]["moments"]
        path.write_text(json.dumps(content))
    message = f"has moments = {first or 2}: expected {then}, as in this run"
    with pytest.raises(ValueError, match=f"out = .* {message}"):
        hs.watch(model, out=tmp_path, append=True, moments=then)
    with (
        hs.watch(model, moments=then) as watch,
        pytest.raises(ValueError, match=f"state_dict {message}"),
    ):
        watch.load_state_dict(state)
    with hs.watch(model, out=tmp_path, append=True, moments=first or 2) as watch:
        watch.load_state_dict(state)
