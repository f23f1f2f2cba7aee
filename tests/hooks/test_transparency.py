"""A watched training run is bit for bit the unwatched one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.zoo import (
    MODELS,
    SEQUENCE,
    Attention,
    Residual,
    assert_same,
    encoder,
    train,
)
from torch import Tensor, nn

from hookstats.hooks.attach import MODULE_KINDS
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    assert_same(train(name, watched=True), train(name, watched=False))


def test_the_comparison_sees_a_difference() -> None:
    plain = train("mlp", watched=False)
    torch.nn.init.zeros_(plain["state"]["0.bias"])
    with pytest.raises(AssertionError):
        assert_same(plain, train("mlp", watched=False))


@pytest.mark.parametrize("name", ["encoder", "attention", "residual", "recurrent"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_evaluation(name: str, mode: Callable[[], Any]) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model = make().eval()
    x = torch.randn(shape)
    with mode():
        before = model(x)
        # With hooks inside it, the encoder layer leaves its fused path, as PyTorch has it.
        include = None if name != "encoder" else ""
        with watch(model, kinds=("output", "grad_output", "input"), include=include) as w:
            during = model(x)
            w.step()
            assert len(w.latest) > 0
    assert_same(before.detach(), during.detach())


def test_hooks_inside_an_encoder_layer_turn_its_fused_path_off() -> None:
    model = encoder().eval()
    x = torch.randn(SEQUENCE)
    with torch.no_grad(), watch(model, kinds=("output",), include="linear1") as w:
        fused = model(x)
        rows = w.coverage()
    assert rows["linear1", "output"].forwards == 1
    torch.testing.assert_close(fused, model(x))


def test_a_part_that_never_runs_is_in_the_coverage() -> None:
    model = Attention()
    included = ("attention.out_proj", "norm")
    with watch(model, kinds=("output", "grad_output"), include=included) as w:
        model(torch.randn(SEQUENCE)).backward()
        coverage = w.coverage()
    assert coverage["attention.out_proj", "output"].forwards == 0
    assert coverage["attention.out_proj", "grad_output"].forwards == 0
    assert coverage["norm", "output"].observed == 1


def test_attention_that_uses_the_weights_of_its_child_is_watched_as_a_whole() -> None:
    torch.manual_seed(0)
    model = Attention()
    with watch(model, kinds=("output", "grad_output", "param_grad")) as w:
        model(torch.randn(SEQUENCE)).backward()
        w.step()
        names = {row.name for row in w.coverage() if row.kind == "output"}
        assert names == {"attention", "norm"}
        assert w.latest["attention", "output"].count.shape == (6,)
        assert ("attention", "output[1]") in w.latest
        assert ("attention", "grad_output[1]") in w.latest
        assert ("attention.out_proj.weight", "param_grad") in w.latest


def test_outputs_are_the_same_objects() -> None:
    returned: list[object] = []
    taken: list[object] = []

    class Child(nn.Module):
        def forward(self, x: Tensor) -> Any:
            returned.append({"x": [x * 2], "y": x})
            return returned[-1]

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Child()

        def forward(self, x: Tensor) -> Any:
            taken.append(self.child(x))
            return taken[-1]

    model = Parent()
    with watch(model, kinds=MODULE_KINDS, include="*"):
        out = model(torch.ones(2, 3, requires_grad=True))
    assert out is taken[0] is returned[0]


def test_hooks_of_the_user_see_and_do_what_they_did() -> None:
    def train_with_hooks(watched: bool) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
        seen: list[Tensor] = []

        def forward_hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
            output.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
            return output + 1

        model[0].register_forward_hook(forward_hook)
        handle = watch(model, kinds=KINDS) if watched else None
        model[2].register_forward_pre_hook(lambda module, args: (args[0] * 3,))
        model[2].register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
        model(torch.ones(2, 3)).sum().backward()
        if handle is not None:
            handle.close()
        return seen, [p.grad for p in model.parameters() if p.grad is not None]

    assert_same(list(train_with_hooks(True)), list(train_with_hooks(False)))


def test_nothing_is_added_to_the_model() -> None:
    model = Residual()
    keys, buffers = list(model.state_dict()), [name for name, _ in model.named_buffers()]
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    with watch(model, kinds=KINDS):
        assert list(model.state_dict()) == keys
        assert [name for name, _ in model.named_buffers()] == buffers
        assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes


def test_autocast() -> None:
    def train_in_bfloat16(watched: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        handle = watch(model, kinds=KINDS) if watched else None
        x = torch.randn(64, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        if handle is not None:
            handle.step()
            assert [s.dtype for s in handle.latest.sites if s.kind == "output"] == ["bfloat16"] * 3
            handle.close()
        return [p.grad for p in model.parameters()]

    assert_same(train_in_bfloat16(True), train_in_bfloat16(False))


def test_double_backward() -> None:
    def penalised(watched: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        handle = watch(model, kinds=KINDS) if watched else None
        x = torch.randn(4, 6, requires_grad=True)
        loss = model(x).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        gradient.square().sum().backward()
        if handle is not None:
            handle.close()
        return [p.grad for p in model.parameters()]

    assert_same(penalised(True), penalised(False))


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "jacobian", "forward AD", "trace"])
def test_transforms(transform: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3)

    def run() -> Any:
        match transform:
            case "grad":
                return torch.func.grad(lambda x: model(x).sum())(x)
            case "vmap":
                return torch.func.vmap(model)(x)
            case "jvp":
                return list(torch.func.jvp(model, (x,), (torch.ones_like(x),)))
            case "jacobian":  # a backward under vmap, of a forward that is not
                return torch.autograd.functional.jacobian(model, x, vectorize=True)
            case "forward AD":
                with torch.autograd.forward_ad.dual_level():
                    dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
                    return list(torch.autograd.forward_ad.unpack_dual(model(dual)))
            case "trace":
                return torch.jit.trace(model, x)(x)

    expected = run()
    with watch(model, kinds=KINDS) as w:
        assert_same(run(), expected)
        for row in w.coverage():
            assert row.error is None
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values())
            if row.kind == "output" and transform != "jacobian":
                assert sum(row.skipped.values()) > 0
        model(x).sum().backward()  # afterwards all is as ever
        w.step()
        assert w.latest["0", "output"].count.tolist()[0] >= 2
