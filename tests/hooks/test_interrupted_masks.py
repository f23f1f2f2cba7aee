"""Masks of calls that end without telling, as an interrupt ends them: no other call has them."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
import torch
from support.interrupts import Interrupt, Line
from torch import Tensor, nn

from hookstats._torch import is_torch_function_enabled
from hookstats.records.reasons import MASK_UNFIT
from hookstats.watching.watch import watch

ROWS, TIME = 3, 5
MASK = torch.arange(TIME) < torch.tensor([[5], [3], [1]])
OTHER = torch.arange(TIME) < torch.tensor([[1], [2], [1]])


class Model(nn.Module):
    """Calls `then` between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(2, 2)
        self.then: Any = None

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        out: Tensor = self.wide(x)
        then, self.then = self.then, None
        return out if then is None else then(out)


def batch() -> Tensor:
    return torch.ones(ROWS, TIME, 2)


def interrupt(_: Tensor) -> Tensor:
    raise KeyboardInterrupt


def count(w: Any) -> int:
    return int(w.latest["wide", "output"].count[0])


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.mark.usefixtures("hooks_in")
def test_the_mask_of_an_interrupted_call_is_of_no_later_call(model: Model) -> None:
    with watch(model, mask="padding", rules=()) as w:
        model.then = interrupt
        with suppress(KeyboardInterrupt):
            model(batch(), MASK)
        model(batch())
        model(batch(), OTHER)
        model.wide(batch())
        w.step()
        assert count(w) == MASK.sum() + OTHER.sum() + 2 * ROWS * TIME


@pytest.mark.usefixtures("hooks_in")
def test_it_ends_with_its_step(model: Model) -> None:
    with watch(model, mask="padding", rules=()) as w:
        model.then = interrupt
        with suppress(KeyboardInterrupt):
            model(batch(), MASK)
        w.step()
        model.wide(batch())
        w.step()
        assert count(w) == ROWS * TIME


@pytest.mark.usefixtures("hooks_in")
def test_an_interrupt_in_an_inner_call_leaves_the_outer_mask(model: Model) -> None:
    def inner(_: Tensor) -> Tensor:
        model.then = interrupt
        with suppress(KeyboardInterrupt):
            model(batch(), OTHER)
        return model(batch())  # as the outer one

    with watch(model, mask="padding", rules=()) as w:
        model.then = inner
        model(batch(), MASK)
        w.step()
        assert count(w) == 2 * MASK.sum() + OTHER.sum()


@pytest.mark.usefixtures("hooks_in", "no_collections")
def test_an_interrupt_at_any_line_leaves_no_mask(model: Model) -> None:
    with watch(model, mask="padding", kinds=("output",), rules=()) as w:
        model(batch(), OTHER)
        model(batch())
        w.step()
        with Interrupt(0, KeyboardInterrupt) as interrupt:
            model(batch(), MASK)
        assert len(interrupt.executed) > 20
        for line in interrupt.executed:
            with Interrupt(line, KeyboardInterrupt) as interrupt:
                model(batch(), MASK)
            assert interrupt.reached, line
            assert torch.is_grad_enabled(), interrupt.where
            assert is_torch_function_enabled(), interrupt.where
            w.step()
            model.wide(batch())
            model(batch())
            w.step()
            assert count(w) == 2 * ROWS * TIME, interrupt.where


@pytest.mark.usefixtures("hooks_in", "no_collections")
def test_an_interrupt_where_a_context_begins_or_ends_leaves_no_mask(model: Model) -> None:
    with watch(model, kinds=("output",), rules=()) as w:

        def masked(at: int | Line) -> Interrupt:
            with Interrupt(at, KeyboardInterrupt) as interrupt, w.mask(MASK):
                model(batch())
            return interrupt

        for _ in range(3):
            lines = masked(0).executed
            w.step()
        assert len(lines) > 20
        stayed = []
        for line in lines:
            interrupt = masked(line)
            assert interrupt.reached, line
            if w._arena.mask.now is not None:
                stayed.append(interrupt.where)
            w.step()
            model(batch())
            w.step()
            assert count(w) == ROWS * TIME, interrupt.where
        # Where the context begins to end, its mask holds until the step is closed.
        assert len(stayed) <= 1
        assert all("masks.py" in where for where in stayed)


def test_a_step_that_closes_within_a_call_leaves_its_mask(model: Model) -> None:
    with watch(model, mask="padding", rules=()) as w:

        def close(_: Tensor) -> Tensor:
            w.step()
            model(batch(), OTHER)
            out: Tensor = model.wide(batch())
            return out

        model.then = close
        model(batch(), MASK)
        w.step()
        assert count(w) == MASK.sum() + OTHER.sum()


def test_a_call_without_a_mask_has_none_of_another_thread(model: Model) -> None:
    begun = threading.Event()
    met = threading.Barrier(2)

    def begin(out: Tensor) -> Tensor:
        begun.set()
        met.wait(30)
        return out

    def outlast(out: Tensor) -> Tensor:
        met.wait(30)
        other.join(30)
        again: Tensor = model.wide(batch())
        return again

    with watch(model, mask="padding", rules=()) as w:
        model.then = begin
        other = threading.Thread(target=model, args=(batch(), MASK))
        other.start()
        assert begun.wait(30)
        model.then = outlast
        with pytest.warns(RuntimeWarning, match="calls on several threads at once"):
            model(batch())
        w.step()
        assert count(w) == MASK.sum() + 2 * ROWS * TIME


def test_contexts_of_several_threads_mask_nothing_and_say_so(model: Model) -> None:
    with watch(model, rules=()) as w:
        begun, end = threading.Event(), threading.Event()

        def hold(context: AbstractContextManager[None]) -> None:
            with context:
                begun.set()
                assert end.wait(30)

        other = threading.Thread(target=hold, args=(w.mask(OTHER),))

        def start() -> None:
            other.start()
            assert begun.wait(30)

        with w.mask(MASK):
            model(batch())
            with pytest.warns(RuntimeWarning, match="Watch.mask: masks of several threads at once"):
                start()
            model(batch())
            end.set()
            other.join()
            model(batch())
        w.step()
        assert count(w) == 2 * MASK.sum() + ROWS * TIME
        assert w.coverage()["wide", "output"].unmasked == {MASK_UNFIT: 1}
