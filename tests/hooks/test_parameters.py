"""Parameters and their gradients at the optimizer's step: accumulated, missing, shared, failing."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from support.expected import assert_reconciles, assert_stats
from support.modules import take_step
from support.parameters import GRADIENTS, Idle, assert_gradients, batch, gradients, tanh_network
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hookstats.hooks import parameters
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")
in_python = pytest.mark.parametrize("hooks_in", ["python"], indirect=True)  # calls the operator


class Calls(TorchDispatchMode):
    """Notes every operator that is called, but for the profiler's own, which optimizers call."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "profiler":
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kinds", [("param_grad",), ("param", "param_grad")])
def test_a_step_is_one_call_of_one_operator(kinds: tuple[str, ...], hooks_in: str) -> None:
    """And the close is one that drains the step; in C++ the kernels are called without an
    operator."""
    model = tanh_network()
    optimizer = Idle(model.parameters())
    model(batch(0)).sum().backward()
    with watch(model, optimizer, kinds=kinds) as w:
        optimizer.step()
        for _ in range(3):
            w._recorder.drain(disk=False)
            with Calls() as calls:
                optimizer.step()
            own = [name for name in calls.names if name.startswith("hookstats.")]
            update = ["hookstats.update_many_.default"] * (hooks_in == "python")
            assert own == [*update, "hookstats.drain_.default"]
        assert all(row.observed == 4 for row in w.coverage())


def test_values_and_gradients_of_every_shape_and_dtype() -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (7,), (3, 4), (2, 3, 5, 5), (64, 64), (4, 0)]
    model = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)
    model.append(nn.Parameter(torch.randn(5, 6).bfloat16()))
    model.append(nn.Parameter(torch.randn(5, 6).double()))
    model.append(nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)))
    for p in model:
        p.grad = torch.randn_like(p)
    empty = nn.Parameter(torch.randn(0, 3))
    model.append(empty)
    empty.grad = torch.randn(0, 3)
    optimizer = SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, kinds=("param", "param_grad")) as w:
        for _ in range(2):
            optimizer.step()
            for name, p in list(model.named_parameters())[:-1]:
                dim = 0 if p.dim() else None
                assert p.grad is not None
                assert_stats(w.latest[name, "param"], [p.float()], dim)
                assert_stats(w.latest[name, "param_grad"], [p.grad.float()], dim)
        assert w.coverage()["10", "param_grad"].skipped == {"no channels": 2}
        assert_reconciles(w)


def test_gradients_that_come_and_go() -> None:
    """What was prepared for the step before is for other tensors: states are never mixed up."""
    model = tanh_network()
    named = dict(model.named_parameters())
    optimizer = SGD(model.parameters(), lr=0.1)
    weights, biases = {"0.weight", "2.weight"}, {"0.bias", "2.bias"}
    present = [weights, biases, set(named), set(), {"0.bias", "2.weight"}, set(named)]
    with watch(model, optimizer, kinds=GRADIENTS) as w:
        for names in present:
            for name, p in named.items():
                p.grad = torch.randn_like(p) if name in names else None
            expected = gradients(model)
            optimizer.step()
            assert_gradients(w.latest, expected)
        row = w.coverage()["0.bias", "param_grad"]
        assert (row.forwards, row.observed, row.missing, row.backwards) == (6, 4, 2, 4)
        assert_reconciles(w)


def test_a_frozen_parameter() -> None:
    model = tanh_network()
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=GRADIENTS) as w:
        model(batch(0)).sum().backward()
        expected = gradients(model)
        assert set(expected) == {"2.weight", "2.bias"}
        optimizer.step()
        assert_gradients(w.latest, expected)
        model[0].requires_grad_(True)
        model(batch(1)).sum().backward()
        expected = gradients(model)
        optimizer.step()
        assert_gradients(w.latest, expected)
        row = w.coverage()["0.weight", "param_grad"]
        assert (row.forwards, row.observed) == (2, 1)
        assert row.skipped == {"requires no gradient": 1}


def test_gradient_accumulation() -> None:
    """One gradient a step, the sum; the outputs of all micro-batches."""
    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        for step in range(2):
            optimizer.zero_grad()
            for micro in range(3):
                model(batch(3 * step + micro)).sum().backward()
            expected = gradients(model)
            optimizer.step()
            assert_gradients(w.latest, expected)
            assert w.latest.step == step
            observed = dict(zip(w.latest.keys(), w.latest.observed.tolist(), strict=True))
            assert observed["0.weight", "param_grad"] == 1
            assert observed["0", "output"] == observed["0", "grad_output"] == 3


def step_in_backward(model: nn.Module) -> list[Optimizer]:
    """An optimizer a parameter, that steps as soon as its gradient is there, and frees it."""
    optimizers: dict[Tensor, Optimizer] = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def test_optimizers_in_the_backward() -> None:
    """The last of them closes the step, and the gradients are those of a backward without."""
    model, twin = tanh_network(), tanh_network()
    plain = SGD(twin.parameters(), lr=0.1)
    with watch(model, step_in_backward(model)) as w:
        for step in range(3):
            plain.zero_grad()
            twin(batch(step)).square().mean().backward()
            expected = gradients(twin)
            plain.step()
            model(batch(step)).square().mean().backward()
            assert all(p.grad is None for p in model.parameters())
            assert w.latest.step == step
            assert_gradients(w.latest, expected)
            # The gradient of the first layer's output comes before those of its parameters.
            assert (w.latest.observed == 1).all()
            assert len(w.latest) == 11
        assert all(row.observed == 3 and row.missing == 0 for row in w.coverage())


def test_optimizers_in_the_backward_that_do_not_all_step() -> None:
    """`Watch.step` closes what they leave open; the next steps are whole again."""
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    with watch(model, step_in_backward(model)) as w:
        for step, used in enumerate(("ab", "a", "ab")):
            sum(model[name](batch(step)).sum() for name in used).backward()
            if used == "a":
                w.step()
            assert w.latest.step == step
            names = {name for name, kind in w.latest if kind == "param_grad"}
            assert names == {f"{module}.{p}" for module in used for p in ("weight", "bias")}
        assert w.coverage()["b.weight", "param_grad"].forwards == 2
        assert all(row.missing == 0 for row in w.coverage())


def test_without_an_optimizer_gradients_that_are_gone_are_missing() -> None:
    model = tanh_network()
    step_in_backward(model)
    with watch(model, kinds=GRADIENTS) as w:
        model(batch(0)).sum().backward()
        w.step()
        assert len(w.latest) == 0
        assert all(row.missing == row.forwards == 1 for row in w.coverage())


def test_a_sparse_gradient_is_its_values() -> None:
    """Those of a row that came twice are added, as the optimizer adds them."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=GRADIENTS) as w:
        for tokens in ([1, 2, 2], [3, 4, 5], []):
            optimizer.zero_grad()
            model(torch.tensor(tokens, dtype=torch.long)).sum().backward()
            expected = gradients(model)
            sparse = expected["0.weight"] = expected["0.weight"].coalesce().values()
            optimizer.step()
            assert_stats(w.latest["0.weight", "param_grad"], [sparse], None)
            total = torch.cat([g.flatten() for g in expected.values()]).norm()
            assert w.latest.scalars["grad_norm"] == pytest.approx(float(total))
        assert_reconciles(w)


class Complex(nn.Module):
    """A complex weight, as of a Fourier layer, and a bias."""

    def __init__(self, dtype: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs() + self.bias


def test_a_complex_gradient_is_pairs_of_reals() -> None:
    model = Complex()
    optimizer = SGD(model.parameters(), lr=0.1)
    kinds = ("param", "param_grad", "update", "optimizer_state")
    with watch(model, optimizer, kinds=kinds) as w:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).sum().backward()
            if step == 2:
                assert model.weight.grad is not None
                model.weight.grad[1, 2] = complex(0.0, math.nan)
            expected, before = gradients(model), model.weight.detach().clone()
            optimizer.step()
            pairs = torch.view_as_real(expected["weight"])
            assert_stats(w.latest["weight", "param_grad"], [pairs], 0)
            assert_stats(w.latest["weight", "param"], [torch.view_as_real(before)], 0)
            total = torch.cat([pairs.flatten(), expected["bias"]]).norm()
            norm = w.latest.scalars["grad_norm"]
            assert norm == pytest.approx(float(total), nan_ok=True)
            assert math.isnan(norm) == (step == 2)
        assert_reconciles(w)


def test_without_a_gradient_that_cannot_be_read_there_is_no_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not zero, and no rule says that it never came."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w, monkeypatch.context() as patch:
        patch.setattr(parameters, "_dense", lambda gradient: gradient)  # as where it would wait
        for step in range(8):
            if step == 6:
                patch.undo()
            take_step(optimizer, model(torch.tensor([1, 2, 2])).sum())
            assert ("grad_norm" in w.latest.scalars) == (step >= 6)
        assert w.coverage()["0.weight", "param_grad"].skipped == {"layout sparse_coo": 6}
        assert [alert.message for alert in w.alerts if alert.rule == "untrained"] == []


class Tied(nn.Module):
    """Two layers that share their weight; recomputed in the backward, if so wished."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_shared_parameter_counts_once_a_step(reentrant: bool | None) -> None:
    model = Tied(reentrant)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=GRADIENTS) as w:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step).requires_grad_()).sum().backward()
            expected = gradients(model)
            assert set(expected) == {"first.weight", "first.bias", "second.bias"}
            optimizer.step()
            assert_gradients(w.latest, expected)
        for row in w.coverage():
            assert row.forwards == row.observed == row.backwards == 3


def test_parameters_that_the_optimizer_gets_later() -> None:
    model = tanh_network()
    optimizer = SGD(model[0].parameters(), lr=0.1)
    with watch(model, optimizer, kinds=GRADIENTS) as w:
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": model[2].parameters()})
            optimizer.zero_grad()
            model(batch(step)).sum().backward()
            expected = gradients(model if step >= 2 else nn.Sequential(model[0]))
            optimizer.step()
            assert_gradients(w.latest, expected)
        assert w.coverage()["2.weight", "param_grad"].forwards == 2


def test_gradients_are_let_go() -> None:
    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    # Rules keep the three smallest ones until the next step.
    with watch(model, optimizer, kinds=("param", "param_grad"), rules=False):
        model(batch(0)).sum().backward()
        alive = [weakref.ref(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        assert all(gradient() is None for gradient in alive)


@in_python
def test_one_that_fails_is_disabled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    real = parameters.update_many_
    bias = model[0].bias

    def broken(xs: list[Tensor], *arguments: Any) -> None:
        if any(x.data_ptr() == bias.grad.data_ptr() for x in xs):
            raise RuntimeError("out of order")
        real(xs, *arguments)

    with watch(model, optimizer, kinds=GRADIENTS, rules=()) as w:
        model(batch(0)).sum().backward()
        optimizer.step()
        monkeypatch.setattr(parameters, "update_many_", broken)
        with pytest.warns(RuntimeWarning, match=r"param_grad of '0\.bias'.*out of order") as caught:
            optimizer.step()
        assert len(caught) == 1
        optimizer.step()
        expected = gradients(model)
        del expected["0.bias"]
        assert_gradients(w.latest, expected)
        row = w.coverage()["0.bias", "param_grad"]
        assert (row.forwards, row.observed, row.skipped) == (3, 1, {"disabled": 2})
        assert w.coverage()["0.weight", "param_grad"].observed == 3
        assert_reconciles(w)


def test_a_lost_device_is_not_hushed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where it might work at the second try."""
    real = parameters.update_many_

    def broken(xs: list[Tensor], *arguments: Any) -> None:
        if len(xs) > 1:
            raise torch.AcceleratorError("an illegal memory access was encountered")
        real(xs, *arguments)

    model = tanh_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=GRADIENTS):
        model(batch(0)).sum().backward()
        monkeypatch.setattr(parameters, "update_many_", broken)
        with pytest.raises(torch.AcceleratorError):
            optimizer.step()
