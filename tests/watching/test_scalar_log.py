"""Watch.log and the numbers that come by themselves: of which step they are, where they go."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.devices import no_synchronisation
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD

from hookstats.records.record import StepRecord
from hookstats.rules.monitor import Monitor
from hookstats.rules.rates import LearningRate
from hookstats.runs.run import open_run
from hookstats.watching import scalars
from hookstats.watching.handle import Watch
from hookstats.watching.recorder import Recorder
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


class Kept:
    """A sink that keeps records and scalars."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.scalars: dict[int, dict[str, float]] = {}

    def __call__(self, record: StepRecord) -> None:
        self.records.append(record)

    def write_scalars(self, step: int, rank: int, values: dict[str, float]) -> None:
        assert rank == 0
        assert step not in self.scalars
        self.scalars[step] = values


@pytest.mark.parametrize("before", [True, False])
def test_scalars_and_records_come_in_the_order_of_steps(
    monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """However many steps are closed before scalars would be handed on: rules see what changed."""
    monkeypatch.setattr(scalars, "_BATCH_SECONDS", 1e9)
    come: dict[int, int] = {}  # by step, how many had come before

    class Order(Kept):
        def __call__(self, record: StepRecord) -> None:
            come.setdefault(record.step, len(come))

        def write_scalars(self, step: int, rank: int, values: dict[str, float]) -> None:
            come.setdefault(step, len(come))

    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    rules = LearningRate(action=lambda alert: None)
    with watch(model, optimizer, every=5, sinks=[Order()], rules=rules) as w:
        for step in range(23):
            loss = backward(model)
            if before:
                w.log(loss=loss)
            optimizer.param_groups[0]["lr"] = 0.1 if step < 20 else 10.0
            optimizer.step()
            if not before:
                w.log(loss=loss)
            if step == 14:
                assert w.latest.step == 10  # asks for what is complete, which step 14 is not
        assert [alert.step for alert in w.alerts] == [20]
    assert list(come.items()) == [(step, step) for step in range(23)]


def backward(model: Any) -> Tensor:
    loss: Tensor = model(torch.randn(2, 3)).square().sum()
    loss.backward()
    return loss.detach()


def test_a_log_after_the_step_is_of_the_step_just_closed(tmp_path: Path) -> None:
    model = network()
    optimizer = SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1)
    kept, losses, norms = Kept(), [], []
    with watch(model, optimizer, every=2, sinks=[kept], out=tmp_path) as w:
        for step in range(5):
            optimizer.zero_grad()
            losses.append(backward(model).item())
            w.log({"eval/before": step}, twice=0)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
            optimizer.param_groups[1]["lr"] = torch.tensor(step / 8)
            optimizer.step()
            w.log(loss=losses[-1], twice=step)
            assert w.latest.step == step // 2 * 2
            assert w.latest.scalars["twice"] == w.latest.step
    run = open_run(tmp_path)
    assert run.steps == [0, 2, 4]
    scalars = run.scalars
    every = list(range(5))
    for name, expected in (
        ("loss", losses),
        ("eval/before", every),
        ("twice", every),
        ("lr/0", [0.1] * 5),
        ("lr/1", [step / 8 for step in every]),
    ):
        assert scalars[name].steps.tolist() == every
        assert scalars[name].values.tolist() == expected
    assert scalars["grad_norm"].steps.tolist() == [0, 2, 4]
    assert scalars["grad_norm"].values == pytest.approx(np.full(3, 0.01), rel=1e-3)  # clipped
    assert min(norms) > 0.01
    assert scalars["steps_per_second"].steps.tolist() == [1, 2, 3, 4]
    assert (np.diff(scalars["loss"].times) > 0).all()
    assert list(kept.scalars) == every
    for step in run:
        assert kept.scalars[step] == dict(run[step].scalars) == scalars.at(step)
        assert kept.records[step // 2].scalars["eval/before"] == step


def test_a_log_between_forward_and_step_is_of_the_open_step() -> None:
    model, kept = network(), Kept()
    with watch(model, kinds=("output",), sinks=[kept], every=3) as w:
        w.log(early=1)  # of the first step
        for step in range(4):
            loss = backward(model)
            w.log(loss=loss, step=step)
            w.step()
    assert [values["step"] for values in kept.scalars.values()] == [0, 1, 2, 3]
    assert "early" in kept.scalars[0]
    assert "early" not in kept.scalars[1]


@pytest.mark.parametrize("fullgraph", [False, pytest.param(True, marks=pytest.mark.check)])
def test_compiled_models_tell_where_a_step_begins(fullgraph: bool) -> None:
    model, kept = network(), Kept()
    with watch(model, kinds=("output",), sinks=[kept], every=4) as w:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
        for step in range(6):
            w_open = compiled(torch.randn(2, 3))
            w.log(step=step)
            w_open.sum().backward()
            w.step()
            w.log(after=step)
    assert kept.scalars.keys() == set(range(6))
    for step, values in kept.scalars.items():
        assert values["step"] == values["after"] == step


def test_what_watching_costs_is_part_of_the_time(hooks_in: str) -> None:
    model, kept = network(), Kept()
    start = time.perf_counter()
    with watch(model, kinds=("output",), sinks=[kept]) as w:
        for _ in range(20):
            model(torch.randn(2, 3))
            w.step()
    took = time.perf_counter() - start
    costs = [values.get("watch_seconds", 0.0) for values in kept.scalars.values()]
    if hooks_in == "c++":
        assert all(cost > 0 for cost in costs)
        assert sum(costs) < took
    else:
        assert not any(costs)


def test_gradient_norms_say_what_is_not_finite() -> None:
    model, kept = network(), Kept()
    optimizer = SGD(model.parameters(), lr=0.0)
    expected = []
    with watch(model, optimizer, kinds=("param_grad",), sinks=[kept]):
        for spoilt in (None, math.inf, math.nan):
            optimizer.zero_grad()
            backward(model)
            if spoilt is not None:
                model[0].weight.grad[0, 0] = spoilt
            gradients = [p.grad.double().flatten() for p in model.parameters()]
            expected.append(torch.cat(gradients).norm().item())
            optimizer.step()
    found = [record.scalars["grad_norm"] for record in kept.records]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert math.isnan(found[2])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("high", "loss = 'high': expected a number, or a tensor of one element"),
        (None, "loss = None: expected a number"),
        (torch.ones(2, 3), r"loss = Tensor of shape \(2, 3\): expected a number"),
        (torch.tensor(1j), "loss = Tensor of shape"),
        (10**400, "loss = 1000"),
    ],
)
def test_what_is_no_number_is_refused(value: object, message: str) -> None:
    with watch(network()) as w, pytest.raises(ValueError, match=message):
        w.log(loss=value)
    with pytest.raises(ValueError, match="the watch is closed"):
        w.log(loss=1.0)


def test_numbers_of_many_types() -> None:
    with watch(network(), kinds=("output",)) as w:
        w.step()
        values = {
            "int": 2**40,
            "bool": True,
            "numpy": np.float32(0.5),
            "bf16": torch.tensor([[0.25]], dtype=torch.bfloat16),
            "long": torch.tensor(3),
            "grad": torch.tensor(1.5, requires_grad=True),
        }
        w.log(values)
        closed = w._log.closed
        assert closed is not None
        expected = {"int": 2.0**40, "bool": 1, "numpy": 0.5, "bf16": 0.25, "long": 3, "grad": 1.5}
        assert closed.resolved().items() >= expected.items()


def test_a_return_to_a_checkpoint_makes_later_scalars_void(tmp_path: Path) -> None:
    model = network()

    def run(w: Watch, steps: range, offset: float) -> None:
        for step in steps:
            backward(model)
            w.step()
            w.log(loss=step + offset)

    with watch(model, out=tmp_path, every=2) as w:
        run(w, range(3), 0)
        state = w.state_dict()
        run(w, range(3, 7), 0)
        w.load_state_dict(state)
        run(w, range(3, 5), 0.5)
    loss = open_run(tmp_path).scalars["loss"]
    assert loss.steps.tolist() == [0, 1, 2, 3, 4]
    assert loss.values.tolist() == [0, 1, 2, 3.5, 4.5]
    with watch(model, out=tmp_path, every=2, append=True) as w:  # goes on after the last record
        run(w, range(5, 7), 0.25)
    loss = open_run(tmp_path).scalars["loss"]
    assert loss.values.tolist() == [0, 1, 2, 3.5, 4.5, 5.25, 6.25]


@pytest.mark.cuda
def test_log_does_not_wait_for_the_device() -> None:
    model, kept = network().cuda(), Kept()
    with no_synchronisation(), watch(model, kinds=("output",), sinks=[kept]) as w:
        total = torch.zeros((), device="cuda")
        for _ in range(3):
            model(torch.ones(2, 3, device="cuda", dtype=torch.float32))
            w.step()
            total += 1
            w.log(total=total)
            torch.cuda._sleep(10_000_000)
            total += 100  # what was logged stays
    assert [values["total"] for values in kept.scalars.values()] == [1, 102, 203]


class Lost(scalars.OnDevice):
    """A number of a device that is lost before it is there."""

    def __init__(self) -> None:
        pass

    def wait(self) -> float:
        raise RuntimeError("the device is lost")


def test_a_number_that_never_comes_takes_no_other_step_along() -> None:
    kept = Kept()
    recorder = Recorder(None, [Monitor(), kept])
    steps = [
        scalars.StepScalars(step, 0.0, {"loss": Lost() if step == 1 else float(step)})
        for step in range(3)
    ]
    recorder.submit_scalars(steps)
    with pytest.warns(RuntimeWarning, match="RuntimeError: the device is lost; the step is lost"):
        recorder.close()
    assert kept.scalars == {0: {"loss": 0.0}, 2: {"loss": 2.0}}
