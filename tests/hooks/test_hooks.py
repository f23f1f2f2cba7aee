"""The hooks: gradients of views and in-place operations, several backwards, failures, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.expected import assert_stats
from support.modules import Lambda
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from hookstats.hooks import gradients
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MODULES)
def test_gradient_of_an_output(name: str, change: str) -> None:
    make, shape, channel_dim = MODULES[name]
    module = make()
    x = torch.randn(shape, requires_grad=True)

    def loss(inplace: bool) -> tuple[Tensor, Tensor]:
        y = module(x * 1)
        end = CHANGES[change](y, inplace)
        weights = torch.arange(end.numel()).view(end.shape) - 3.0
        return y, (end * weights).sum()

    y, twin = loss(inplace=False)
    (expected,) = torch.autograd.grad(twin, y)
    with watch(module, kinds=("grad_output",), include="", channel_dim=channel_dim) as w:
        loss(inplace=True)[1].backward()
        w.step()
        row = w.coverage()["", "grad_output"]
        stats = w.latest["", "grad_output"]
    assert (row.forwards, row.observed, row.backwards, row.missing) == (1, 1, 1, 0)
    assert_stats(stats, [expected], channel_dim)


def test_gradients_of_the_views_of_one_base() -> None:
    module = Lambda(lambda x: (x * 2).chunk(2, -1))
    x = torch.randn(3, 4, requires_grad=True)
    with watch(module, kinds=("grad_output",)) as w:
        a, b = module(x)
        (a * b.detach() + 3 * b).sum().backward()
        w.step()
        assert_stats(w.latest["", "grad_output"], [b], -1)
        assert_stats(w.latest["", "grad_output[1]"], [torch.full((3, 2), 3.0)], -1)


def test_a_gradient_of_the_base_in_another_layout() -> None:
    module = Lambda(lambda x: x[1:, 2])
    x = torch.randn(6, 4)
    with watch(module, kinds=("grad_output",)) as w:
        base = x.t().requires_grad_() * 2
        base.register_hook(lambda gradient: gradient.contiguous())
        y = module(base)
        expected = 2 * y.detach() * (y.detach() > 0)
        y.relu_().square().sum().backward()
        w.step()
        assert base.stride() == (1, 4)
        assert_stats(w.latest["", "grad_output"], [expected], -1)


def test_a_view_of_a_base_that_requires_grad_only_later() -> None:
    module = nn.Identity()
    x = torch.randn(3, requires_grad=True)
    with watch(module, kinds=("grad_output",)) as w:
        base = torch.zeros(2, 3)
        view = base[0]
        base.add_(x)
        module(view).square().sum().backward()
        w.step()
        assert w.coverage()["", "grad_output"].observed == 1
        assert_stats(w.latest["", "grad_output"], [2 * x], -1)


def test_a_gradient_of_the_base_alone_is_not_the_views() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Flatten())
    with watch(model, kinds=("grad_output",)) as w:
        y = model[0](torch.randn(3, 2, 6))
        model[1](y)  # its output is used by nobody
        y.sum().backward()
        w.step()
        assert ("1", "grad_output") not in w.latest
        row = w.coverage()["1", "grad_output"]
        assert (row.forwards, row.observed, row.backwards, row.missing) == (1, 0, 0, 1)


def test_a_gradient_that_never_came_is_missing() -> None:
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as w:
        x = torch.randn(2, 3)
        model[1](x)
        model[0](x).sum().backward()
        optimizer.step()
        assert [kind for name, kind in w.latest if name.startswith("1")] == ["output"]
        coverage = w.coverage()
        for key in (("1", "grad_output"), ("1.weight", "param_grad")):
            assert (coverage[key].observed, coverage[key].missing) == (0, 1)
        assert coverage["0", "grad_output"].missing == coverage["0.bias", "param_grad"].missing == 0


def test_the_gradient_of_an_input_is_its_total_one() -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Linear(3, 3, bias=False)})
    with watch(model, kinds=("grad_input", "input")) as w:
        h = model["first"](torch.randn(2, 3))
        (model["second"](h).sum() + (5 * h).sum()).backward()
        w.step()
        weight = model["second"].weight
        expected = (5 + weight.detach().sum(0)).expand(2, 3)
        assert_stats(w.latest["second", "grad_input"], [expected], -1)
        assert_stats(w.latest["second", "input"], [h], -1)
        assert w.coverage()["first", "grad_input"].skipped == {"requires no gradient": 1}


def test_the_gradient_of_an_input_that_the_module_overwrites() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(2, 4, 3)
    with watch(model, kinds=("input", "grad_input")) as w:
        model(x).square().sum().backward()
        w.step()
        y = model[0](x).detach().requires_grad_()
        y.relu().square().sum().backward()
        assert y.grad is not None
        assert_stats(w.latest["1", "input"], [y], -1)
        assert_stats(w.latest["1", "grad_input"], [y.grad], -1)


def test_outputs_are_read_before_they_are_overwritten() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(inplace=True))
    with watch(model, kinds=("output",)) as w:
        model(torch.randn(2, 1, 4, 4))
        w.step()
        assert (w.latest["0", "output"].min < 0).all()
        assert (w.latest["1", "output"].min == 0).all()


def test_each_backward_counts() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with watch(model, kinds=("grad_output",)) as w:
        loss = model(torch.randn(2, 4, 3)).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        w.step()
        row = w.coverage()["0", "grad_output"]
        assert (row.forwards, row.observed, row.backwards, row.missing) == (1, 1, 3, 0)
        assert w.latest["0", "grad_output"].count.tolist() == [24] * 3
        assert w.latest.observed.tolist() == [3]
        merged = "several backwards, merged: 3 gradients of 1 calls of grad_output of 0"
        assert merged in str(w.coverage()).splitlines()


def _by_schedule(loss: Tensor, x: Tensor, parameters: list[nn.Parameter]) -> None:
    """As stages of a zero-bubble pipeline do."""
    groups = stage_backward_input([loss], None, [x], iter(parameters))[1]
    stage_backward_weight(iter(parameters), groups)


def _by_grad(loss: Tensor, x: Tensor, parameters: list[nn.Parameter]) -> None:
    torch.autograd.grad(loss, x, retain_graph=True)
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient


@pytest.mark.parametrize("split", [_by_schedule, _by_grad])
def test_a_split_backward_is_named(split: Callable[..., None]) -> None:
    """First the gradients of inputs, then those of weights: what comes twice has sums of two, with
    the same rms, and the coverage names exactly these tensors."""
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    parameters = list(model.parameters())
    x = torch.randn(4, 3, requires_grad=True)
    with watch(model, every=1) as w:
        model(x).square().mean().backward()
        w.step()
        whole = w.latest
        model.zero_grad()
        split(model(x).square().mean(), x, parameters)
        w.step()
        doubled = set()
        for site, before in zip(whole.sites, whole.values(), strict=True):
            now = w.latest[site.name, site.kind].per_tensor()
            torch.testing.assert_close(now.rms, before.per_tensor().rms)
            if not torch.equal(now.count, before.per_tensor().count):
                doubled.add((site.name, site.kind))
        rows = [row for row in w.coverage() if row.backwards > row.forwards]
        assert doubled == {(row.name, row.kind) for row in rows} != set()
        assert {kind for _, kind in doubled} == {"grad_output"}
        assert "several backwards, merged: " in str(w.coverage())


def test_an_undefined_gradient_is_missing() -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            return None

    model = nn.Linear(3, 3)
    with watch(model, kinds=("grad_output",)) as w:
        Stop.apply(model(torch.randn(2, 3))).sum().backward()
        w.step()
        row = w.coverage()["", "grad_output"]
        assert (row.observed, row.missing, row.backwards) == (0, 1, 0)


def test_a_late_gradient_is_no_part_of_another_step() -> None:
    model = nn.Linear(3, 3)
    with watch(model, kinds=("grad_output",), every=2) as w:
        loss = model(torch.randn(2, 3)).sum()
        w.step()
        loss.backward()
        w.step()
        row = w.coverage()["", "grad_output"]
        assert (row.forwards, row.observed, row.backwards, row.missing) == (1, 0, 1, 0)
        assert row.skipped == {"step not recorded": 1}


def test_a_hook_of_a_stale_view_does_not_crash() -> None:
    model = nn.Identity()
    with watch(model, kinds=("grad_output", "grad_input")) as w:
        base = torch.ones(3, 4, requires_grad=True) * 1
        view = base.view(-1)
        base.mul_(2)
        (model(view) * 3).sum().backward()
        w.step()
        for kind in ("grad_output", "grad_input"):
            assert w.latest["", kind].l1_norm.sum() == 36


def test_mutable_outputs_that_fail_to_be_walked_disable_the_module_alone() -> None:
    class Broken(dict[str, Tensor]):
        def items(self) -> Any:
            raise RuntimeError("no items")

    model = nn.Sequential(Lambda(lambda x: Broken(x=x)), Lambda(lambda d: d["x"] * 2))
    with watch(model, kinds=("output", "grad_output")) as w:
        x = torch.randn(2, 3, requires_grad=True)
        with pytest.warns(RuntimeWarning, match="'0'.*no items") as caught:
            model(x).sum().backward()
        assert len(caught) == 2  # one per site
        model(x).sum().backward()
        w.step()
        assert w.latest["1", "grad_output"].count.tolist() == [4] * 3
        row = w.coverage()["0", "output"]
        assert (row.forwards, row.skipped) == (2, {"disabled": 2})
        assert row.error == "RuntimeError: no items"


def view_of_product(x: Tensor) -> Tensor:
    """A view, as which outputs of modules of torch are views differs between versions."""
    return (2 * x).view(-1, 3)


@pytest.mark.parametrize("hooks_in", ["python"], indirect=True)
def test_a_gradient_that_fails_leaves_the_backward_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no part")

    model = Lambda(view_of_product)
    x = torch.randn(2, 4, 3, requires_grad=True)
    monkeypatch.setattr(gradients.View, "part_of", broken)
    with watch(model, kinds=("grad_output",)) as w:
        with pytest.warns(RuntimeWarning, match="grad_output of ''.*no part"):
            model(x).relu_().sum().backward()
        assert x.grad is not None
        assert w.coverage()["", "grad_output"].error == "RuntimeError: no part"


def test_inference_mode_and_no_grad_mix() -> None:
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    with watch(model, kinds=("output", "grad_output")) as w:
        with torch.inference_mode():
            model(x)
        with torch.no_grad():
            model(x)
        model(x).sum().backward()
        with torch.inference_mode():
            w.step()
        assert w.latest["", "output"].count.tolist() == [6] * 3
        assert w.latest["", "grad_output"].count.tolist() == [2] * 3
        assert w.coverage()["", "grad_output"].skipped == {"requires no gradient": 2}
        with torch.inference_mode():
            model(x)
        w.step()
        assert w.latest["", "output"].count.tolist() == [2] * 3


def test_torch_function_modes_of_the_user_see_nothing() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls.append(func)
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def calls() -> list[Any]:
        with Mode() as mode:
            model(torch.ones(2, 4, 3)).sum().backward()
        return mode.calls

    plain = calls()
    with watch(model, kinds=KINDS):
        assert calls() == plain


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_hook_that_is_removed_by_one_before_it(kind: str) -> None:
    model = nn.Tanh()
    w = watch(model, kinds=(kind,))
    place = model.register_forward_pre_hook if kind == "input" else model.register_forward_hook
    place(lambda *args: w.close(), prepend=True)
    model(torch.ones(2))  # torch still calls the other
    assert w.coverage()["", kind].forwards == 0
