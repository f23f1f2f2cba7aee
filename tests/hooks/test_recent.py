"""Tensors that come again in a step: their statistics are copied, bit for bit, and only theirs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.modules import Lambda
from support.samples import assert_same
from torch import Tensor, nn
from torch.optim import SGD

from hookstats import LinearBins, LogBins, StepRecord
from hookstats.arena.arena import Accumulator
from hookstats.kernels import native
from hookstats.watching.watch import watch

ROWS, WIDTH = 512, 64
"""Large enough that states are copied."""
ALL = ("input", "output", "grad_input", "grad_output", "param_grad")


class Chain(nn.Module):
    """Modules one after another, the first of which makes a tensor that requires a gradient."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.rest = nn.Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rest(self.linear(x))
        return y


def train(
    make: Callable[[], nn.Module],
    inputs: Callable[[], Tensor],
    steps: int,
    batches: int,
    **settings: Any,
) -> tuple[list[StepRecord], int]:
    """The records of a training, and how many tensors of it came again."""
    torch.manual_seed(0)
    model = make()
    optimizer = SGD(model.parameters(), lr=0.01)
    records: list[StepRecord] = []
    with watch(model, optimizer, sinks=(records.append,), **settings) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(batches):
                model(inputs()).float().square().mean().backward()
            optimizer.step()
    assert w.coverage().failures == {}
    half = w._arena.native
    return records, 0 if half is None else half.repeated


def assert_same_statistics(records: list[StepRecord], expected: list[StepRecord]) -> None:
    for one, two in zip(records, expected, strict=True):
        assert_same(replace(one, scalars={}), replace(two, scalars={}))  # such as times
        np.testing.assert_array_equal(one.moments, two.moments)


def repeated(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], nn.Module],
    inputs: Callable[[], Tensor] = lambda: torch.randn(ROWS, WIDTH),
    steps: int = 4,
    batches: int = 1,
    **settings: Any,
) -> int:
    """How many tensors came again in the last of `steps` steps, all of which have the records that
    the Python hooks make, which read each tensor."""
    records, before = train(make, inputs, steps - 1, batches, **settings)
    records, after = train(make, inputs, steps, batches, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(native, "hooks", None)
        expected, none = train(make, inputs, steps, batches, **settings)
    assert none == 0
    assert_same_statistics(records, expected)
    return after - before


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bins": None},
        {"bins": LinearBins(16, -1.0, 1.0), "channel_bins": LogBins(1)},
        {"bins": LogBins(sample=4)},
        {"bins": LogBins(sample="auto")},
        {"moments": 4},
    ],
    ids=["default", "no bins", "channel bins", "sampled", "auto", "higher"],
)
def test_outputs_that_are_inputs_and_their_gradients_are_copied(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> nn.Module:
        return Chain(nn.Identity(), nn.Dropout(0.0), nn.Sequential(nn.Identity()))

    # Of the linear layer's output and its gradient, three more modules have both. The histograms of
    # all channels take longer to copy than to make.
    expected = 0 if "channel_bins" in settings else 6
    assert repeated(monkeypatch, make, **settings) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dtypes_and_layouts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Identity(), nn.BatchNorm2d(8), nn.Identity())
        return model.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def inputs() -> Tensor:
        images = torch.randn(4, 3, 31, 33, dtype=dtype)
        return images.contiguous(memory_format=torch.channels_last)

    assert repeated(monkeypatch, make, inputs) == 4


def test_inputs_that_are_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        return Chain(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    # Of three modules the inputs and their gradients. What `rest` is called with is no site.
    assert repeated(monkeypatch, make, kinds=ALL) == 6


def test_a_shortcut_past_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(12)))
            self.shortcut = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layers(x) + self.shortcut(x)
            return y

    assert repeated(monkeypatch, lambda: Chain(Block())) == 2


def by_version(x: Tensor) -> Tensor:
    x[3, 5] += 1.0
    return x


def behind_an_alias(x: Tensor) -> Tensor:
    alias = x.data
    x[3, 5] += 1.0
    return alias.requires_grad_()


def by_data(x: Tensor) -> Tensor:
    x.data.mul_(1.5)
    return x


def by_data_elsewhere(x: Tensor) -> Tensor:
    x.data = x.data * 1.5
    return x


def transposed(x: Tensor) -> Tensor:
    x.data = x.data.view(WIDTH, ROWS).t()  # the same memory and sizes
    return x


def with_a_hook(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        x.register_hook(change)  # type: ignore[no-untyped-call]
        return x

    return forward


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (by_version, 0),
        (by_data, 1),
        (by_data_elsewhere, 1),
        (transposed, 1),
        (with_a_hook(lambda g: g * 2), 1),
        (with_a_hook(lambda g: g.mul_(2)), 1),
        (with_a_hook(by_version), 1),
        (with_a_hook(by_data), 1),
        (lambda x: x.detach().requires_grad_(), 1),
        (behind_an_alias, 0),
        (lambda x: x.view_as(x), 1),
    ],
)
def test_what_was_changed_meanwhile_is_read(
    change: Callable[[Tensor], Tensor], again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether only the output comes again, or only the gradient, or neither."""
    assert repeated(monkeypatch, lambda: Chain(Lambda(change))) == again


def test_each_site_has_its_own_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        return Chain(Lambda(lambda x: x), nn.Identity())

    # The two after the linear layer have other channels than this one, and the same as each other.
    settings: dict[str, Any] = {"channel_dim": {nn.Linear: 1, Lambda: 0, nn.Identity: 0}}
    assert repeated(monkeypatch, make, lambda: torch.randn(WIDTH * 4, WIDTH), **settings) == 2


def test_several_calls_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.same = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.same(self.one(x))
            z: Tensor = self.same(self.two(y))
            return z + self.same(y)  # type: ignore[no-any-return]

    # The first call alone, of outputs and of gradients.
    assert repeated(monkeypatch, Shared) == 2
    assert repeated(monkeypatch, Shared, batches=3) == 2


def test_a_state_of_several_calls_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(WIDTH, WIDTH)
            self.of_first, self.of_second = nn.Identity(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            first = self.one(x)
            second = self.one(first)
            y: Tensor = self.of_second(second) + self.of_first(first)
            return y

    # The gradient of the second call alone, which comes first.
    assert repeated(monkeypatch, Twice) == 1


def test_a_step_that_is_numbered_anew_has_another_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(hooks: Any) -> list[StepRecord]:
        monkeypatch.setattr(native, "hooks", hooks)
        records: list[StepRecord] = []
        torch.manual_seed(0)
        model = Chain(nn.Identity())
        with watch(model, sinks=(records.append,), bins=LogBins(sample=4)) as w:
            for step in range(4):
                y = model.linear(torch.randn(ROWS, WIDTH))
                w.set_step(100 * step + 50)
                model.rest(y).sum().backward()
                w.step()
        return records

    assert_same_statistics(train(native.hooks), train(None))


def test_what_an_interrupt_left_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that was folded in and not counted."""
    model = Chain(nn.Identity())
    with watch(model, kinds=("output",)) as w:
        model.rest(torch.randn(ROWS, WIDTH))
        w.step()
        with monkeypatch.context() as patch:
            patch.setattr(Accumulator, "end", interrupt)
            with pytest.raises(KeyboardInterrupt):
                model.linear(torch.randn(ROWS, WIDTH))  # the first one: Python folds it in
        y = model.linear(torch.randn(ROWS, WIDTH))
        model.rest(y)
        w.step()
    found = w.latest["rest.0", "output"]
    assert found.count.tolist() == [ROWS] * WIDTH
    torch.testing.assert_close(found.mean, y.detach().double().mean(0))


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_threads_may_change_what_is_read() -> None:
    """Another thread gives a tensor other memory, and takes it away, while C++ reads without the
    GIL."""
    model = nn.Sequential(nn.Linear(64, 4096), nn.Identity())
    found: list[Tensor] = []
    stop = threading.Event()

    def change() -> None:
        empty = torch.empty(0)
        while not stop.is_set():
            for y in found[-1:]:
                y.data = empty

    thread = threading.Thread(target=change)
    thread.start()
    model[0].register_forward_pre_hook(lambda module, args: found.clear())
    model[0].register_forward_hook(lambda module, args, output: found.append(output))
    with watch(model) as w, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(50):
            with suppress(RuntimeError):  # as the tensor is empty now
                model(torch.randn(256, 64))
            w.step()
    stop.set()
    thread.join()
    assert w.latest["0", "output"].count.tolist() == [256] * 4096


def test_small_tensors_and_such_without_a_gradient_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def small() -> nn.Module:
        return Chain(nn.Identity())

    def frozen() -> nn.Module:
        return nn.Sequential(Chain(nn.Identity()).requires_grad_(False), nn.Linear(WIDTH, 4))

    assert repeated(monkeypatch, small, lambda: torch.randn(8, WIDTH)) == 0
    assert repeated(monkeypatch, frozen) == 0


def test_a_copy_has_the_mask_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(steps: int, hooks: Any) -> tuple[list[StepRecord], int]:
        monkeypatch.setattr(native, "hooks", hooks)
        records: list[StepRecord] = []
        torch.manual_seed(0)
        linear, one, two, three = nn.Linear(WIDTH, WIDTH), *(nn.Identity() for _ in range(3))
        with watch(nn.ModuleList([linear, one, two, three]), sinks=(records.append,)) as w:
            for _ in range(steps):
                keep = torch.rand(16, 32) > 0.5
                with w.mask(keep):
                    y = one(linear(torch.randn(16, 32, WIDTH)))
                with w.mask(~keep):
                    y = two(y)
                with w.mask(keep):
                    y = three(y)
                y.square().sum().backward()
                w.step()
        half = w._arena.native
        return records, 0 if half is None else half.repeated

    (_, before), (records, after) = train(3, native.hooks), train(4, native.hooks)
    assert_same_statistics(records, train(4, None)[0])
    assert after - before == 2  # those of `one`; whether a mask equals another is not looked at


def test_a_gradient_in_the_memory_of_an_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class InPlace(torch.autograd.Function):
        """As fused losses do: the gradient is written over the input, past the version counter."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            loss = x.sum()
            x.data[1, :3] = 7.0
            ctx.save_for_backward(x.detach())
            return loss.expand(1)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            return ctx.saved_tensors

    assert repeated(monkeypatch, lambda: Chain(nn.Identity(), Lambda(InPlace.apply))) == 2


def test_a_discarded_step_is_forgotten() -> None:
    model = Chain(nn.Identity())
    with watch(model) as w:
        for _ in range(3):  # then C++ folds in all of it
            model(torch.randn(ROWS, WIDTH))
            w.step()
        y = model.linear(torch.randn(ROWS, WIDTH))
        w._arena.discard()
        model.linear(torch.randn(ROWS, WIDTH))
        model.rest(y)
        w.step()
    torch.testing.assert_close(w.latest["rest.0", "output"].mean, y.detach().double().mean(0))


def test_memory_that_another_tensor_has_meanwhile_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the same address, of the same version, and with nearly the same values."""
    reused = 0

    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Lambda(torch.clone), Lambda(torch.clone)
            self.last = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            nonlocal reused
            values = x.clone().requires_grad_()
            address = self.one(values).data_ptr()
            with torch.no_grad():
                values[3, 5] += 1.0
            found = self.two(values)
            reused += found.data_ptr() == address
            y: Tensor = self.last(found)
            return y

    assert repeated(monkeypatch, Forgets, steps=6) == 0
    assert reused > 0
