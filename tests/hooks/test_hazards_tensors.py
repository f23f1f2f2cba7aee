"""What training does that hooks get wrong: odd outputs, odd gradients, odd kinds of tensors."""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.expected import assert_adds_up, assert_stats
from support.modules import Lambda, network
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import SGD

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.watching.settings import KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


# Outputs


LIARS: dict[str, Callable[[Tensor], Any]] = {
    "proxy": weakref.proxy,
    "mock": lambda x: Mock(spec=Tensor),
    "list": lambda x: [weakref.proxy(x), x],
}


@pytest.mark.parametrize("lie", LIARS)
def test_what_lies_about_being_a_tensor_is_none(lie: str) -> None:
    kept: list[Tensor] = []

    def liar(x: Tensor) -> Any:
        kept.append(x * 2)
        return LIARS[lie](kept[-1])

    model = nn.Sequential(Lambda(liar), Lambda(lambda y: kept[-1].sum()))
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        for _ in range(2):
            model(torch.ones(2, 3, requires_grad=True)).backward()
        for row in w.coverage():
            if (row.name, row.kind) in {("0", "output"), ("1", "input"), ("1", "grad_input")}:
                assert row.skipped == {"no tensor": 2}, row
        assert_adds_up(w)
        w.step()
        if lie == "list":
            assert_stats(w.latest["0", "output[1]"], [kept[0], kept[1]], -1)


def test_a_huge_site_is_refused_with_its_size_and_the_others_go_on() -> None:
    model = nn.Sequential(nn.Embedding(3_000_000, 1), nn.Linear(1, 4), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    refused = r"param_grad of '0.weight': ValueError: channels = 3000000: .* would take \d+\.\d GiB"
    said: list[str] = []
    with hs.watch(model, optimizer, channel_bins=hs.LogBins()) as w:
        for _ in range(2):
            optimizer.zero_grad()
            y = model(torch.tensor([[1, 2], [3, 4]]))
            y.sum().backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            said += [str(one.message) for one in caught]
            assert_stats(w.latest["2", "output"], [y], -1)
            assert len(w.latest) == 1 + 3 * 2 + 4
        assert [bool(re.search(refused, message)) for message in said] == [True]
        coverage = w.coverage()
        assert coverage["0.weight", "param_grad"].skipped == {"disabled": 2}
        assert [row.name for row in coverage if row.error is not None] == ["0.weight"]


STALE: dict[str, Callable[[Tensor], Tensor]] = {
    "one of several outputs": lambda y: y.unbind(0)[0],
    "made without gradients": lambda y: torch.no_grad()(y.view)(-1, 3),
}


@pytest.mark.parametrize("made", STALE)
def test_a_stale_view_is_skipped_and_fresh_ones_are_not(made: str) -> None:
    """A view that lost its place in the graph, since its base was changed in place."""

    def forward(x: Tensor, stale: bool) -> Tensor:
        y = x * 2
        if not stale:
            return y.unbind(0)[0]
        view = STALE[made](y)
        y.add_(1)
        return view

    model = Lambda(forward)
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        for stale in (False, True, True, False):
            x = torch.ones(2, 4, 3, requires_grad=True)
            y = model(x, stale)
            if not stale:
                y.sum().backward()
            w.step()
            assert_stats(w.latest["", "output"], [y], -1)
        row = w.coverage()["", "grad_output"]
        assert (row.observed, row.skipped, row.error) == (2, {"stale view": 2}, None)
        assert_adds_up(w)


def test_a_generator_is_not_used_up() -> None:
    model = nn.Sequential(Lambda(lambda x: (x * i for i in range(3))), Lambda(lambda xs: sum(xs)))
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        y = model(torch.ones(2, 3))
        assert torch.equal(y, torch.full((2, 3), 3.0))
        assert w.coverage()["0", "output"].skipped == {"no tensor": 1}


def test_one_tensor_twice_in_an_output() -> None:
    model = Lambda(lambda x: [(y := x * 2), y])
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        a, b = model(torch.ones(2, 3, requires_grad=True))
        (a.sum() + 3 * b.sum()).backward()
        w.step()
        for path in ("", "[1]"):  # one tensor has one gradient, whoever used it
            assert_stats(w.latest["", f"output{path}"], [torch.full((2, 3), 2.0)], -1)
            assert_stats(w.latest["", f"grad_output{path}"], [torch.full((2, 3), 4.0)], -1)


def test_an_output_that_is_the_input() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Dropout(0.0), nn.Identity())
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        x = torch.randn(2, 3)
        y = model(x)
        y.square().sum().backward()
        w.step()
        for name in "123":
            for kind in ("output", "input"):
                assert_stats(w.latest[name, kind], [y], -1)
            for kind in ("grad_output", "grad_input"):
                assert_stats(w.latest[name, kind], [2 * y], -1)
        assert_adds_up(w)


def test_leaves_among_inputs_and_outputs_get_no_hooks() -> None:
    own = nn.Parameter(torch.ones(2, 3))
    model = nn.Sequential(nn.Identity(), Lambda(lambda x: (x * 2, own)))
    x = torch.ones(2, 3, requires_grad=True)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        for _ in range(4):
            y, again = model(x)
            (y * again).sum().backward()
            w.step()
            assert w.latest["1", "grad_output"].count.tolist() == [2] * 3
        assert not x._backward_hooks
        assert not own._backward_hooks
        coverage = w.coverage()
        assert coverage["0", "grad_output"].skipped == {"leaf": 4}
        assert coverage["1", "grad_output[1]"].skipped == {"leaf": 4}
        assert_adds_up(w)


def test_keys_that_never_come_again_do_not_fill_the_memory() -> None:
    calls = iter(range(10**6))
    model = Lambda(lambda x: {f"image {next(calls)}": x for _ in range(600)})
    with hs.watch(model, kinds=("output",), bins=None) as w:
        model(torch.ones(2, 3))
        with pytest.warns(RuntimeWarning, match="more than 1024 paths"):
            model(torch.ones(2, 3))
        model(torch.ones(2, 3))
        w.step()
        assert len(w.latest) == 1024
        rows = w.coverage()
        assert sum(row.forwards for row in rows) == 1800
        assert rows["", "output[...]"].skipped == {"disabled": 776}


def test_an_output_that_holds_itself_disables_the_module_alone() -> None:
    def knot(x: Tensor) -> list[Any]:
        knotted: list[Any] = [x * 2]
        knotted.append(knotted)
        return knotted

    model = nn.Sequential(Lambda(knot), Lambda(lambda knotted: knotted[0] * 2))
    with hs.watch(model, kinds=("output",), bins=None) as w:
        with pytest.warns(RuntimeWarning, match=r"no longer records output.* of '0': "):
            y = model(torch.ones(2, 3))
        w.step()
        assert_stats(w.latest["1", "output"], [y], -1)


# Gradients


class Expanding(torch.autograd.Function):
    """Its gradient has the strides (0, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].expand(ctx.shape)


class Negative(torch.autograd.Function):
    """Its gradient has the negative bit set."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gradient = torch.randn(4, 6, dtype=torch.complex64).conj().imag
        assert gradient.is_neg()
        return gradient


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x.square().sum(),
    "stride (0, 0)": Expanding.apply,
    "transposed": lambda x: (x.t() @ torch.randn(4, 2)).square().sum(),
    "negative bit": Negative.apply,
    "not finite": lambda x: (x * torch.tensor([torch.nan, torch.inf, 1, 0, -1, 2])).sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_odd_gradients(name: str) -> None:
    model = Lambda(lambda x: x * 2)
    x = torch.randn(4, 6, requires_grad=True)
    with hs.watch(model, kinds=("grad_output",)) as w:
        y = model(x)
        seen: list[Tensor] = []
        y.register_hook(seen.append)
        GRADIENTS[name](y).backward()
        w.step()
        assert_stats(w.latest["", "grad_output"], seen, -1)
        assert_adds_up(w)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", ["uncoalesced", "jagged"])
def test_gradients_that_cannot_be_read_are_refused_by_name(layout: str) -> None:
    match layout:
        case "uncoalesced":
            model: nn.Module = Lambda(lambda x: x * 2)
            x = torch.randn(4, 6)

            def loss(y: Tensor) -> Tensor:
                return nn.functional.embedding(torch.tensor([1, 1]), y, sparse=True).sum()

            reason = "layout sparse_coo"
        case _:
            model = nn.Linear(6, 2)
            x = torch.nested.nested_tensor(
                [torch.randn(2, 6), torch.randn(3, 6)], layout=torch.jagged
            )

            def loss(y: Tensor) -> Tensor:
                return y.values().sum()

            reason = "NestedTensor"
    with hs.watch(model, kinds=("grad_output",)) as w:
        loss(model(x.requires_grad_())).backward()
        w.step()
        row = w.coverage()["", "grad_output"]
        assert (row.forwards, row.observed, row.skipped) == (1, 0, {reason: 1})
        assert_adds_up(w)
        assert len(w.latest) == 0


def test_a_complex_gradient_of_an_output() -> None:
    model = Lambda(lambda x: x * 2)
    x = torch.randn(4, 6, dtype=torch.complex64, requires_grad=True)
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        for _ in range(3):
            y = model(x)
            seen: list[Tensor] = []
            y.register_hook(lambda g, seen=seen: seen.append(torch.view_as_real(g.resolve_conj())))
            y.abs().sum().backward()
            w.step()
            assert_stats(w.latest["", "grad_output"], seen, 1)
            assert_stats(w.latest["", "output"], [torch.view_as_real(y.detach())], 1)
        assert_adds_up(w)


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)])  # the latter's output is a view
@pytest.mark.parametrize("use", ["none", "backward", "in place", "graph kept", "failure"])
def test_no_hook_keeps_a_tensor_alive(shape: tuple[int, ...], use: str) -> None:
    def broken(gradient: Tensor) -> None:
        raise RuntimeError("of the user")

    model = nn.Linear(3, 4)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        x = torch.randn(shape, requires_grad=True) * 1
        y = model(x)
        alive = [weakref.ref(tensor) for tensor in (x, y, y.untyped_storage())]
        loss = (y.mul_(2) if use == "in place" else y * 2).sum()
        if use == "failure":
            x.register_hook(broken)
            with pytest.raises(RuntimeError, match="of the user"):
                loss.backward()
        elif use != "none":
            loss.backward(retain_graph=use == "graph kept")
        w.step()
        assert w.latest["", "output"].count.sum() == y.numel()
        del x, y, loss
        # By their reference counts alone: the collector is not asked.
        assert [reference() for reference in alive] == [None] * 3


# Tensors that are not what they seem


@pytest.mark.parametrize("closed_by", ["step", "optimizer"])
def test_what_is_real_under_a_fake_mode_is_recorded(closed_by: str) -> None:
    model, x = network(), torch.randn(2, 3)
    optimizer = SGD(model.parameters(), lr=0.0)
    with hs.watch(model, optimizer if closed_by == "optimizer" else None, kinds=KINDS) as w:
        for faked in (True, False, True, False):
            with FakeTensorMode(allow_non_fake_inputs=True) if faked else nullcontext():
                loss = model(x).sum()
                if not faked:
                    loss.backward()
                w.step() if closed_by == "step" else optimizer.step()
            assert w.latest["0", "input"].mean.tolist() == pytest.approx(x.mean(0).tolist())
            assert (("0", "output") in w.latest) is not faked
        assert w.coverage().failures == {}
        assert w.coverage().steps == 4
        assert {row.error for row in w.coverage()} == {None}
        assert w.coverage()["0", "input"].observed == 4
        assert w.coverage()["0", "output"].skipped == {"FakeTensor": 2}
        assert_adds_up(w)
