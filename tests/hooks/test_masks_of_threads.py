"""Masks of calls on several threads: no call has the mask of another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from hookstats.watching.watch import watch

ROWS, TIME = 4, 6


class Meeting(nn.Module):
    """Its calls wait for each other between their two layers."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.alone = nn.Linear(3, 3)
        self.barrier = threading.Barrier(calls)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.barrier.wait(30)
        x = self.first(x)
        self.barrier.wait(30)
        y: Tensor = self.second(x)
        self.barrier.wait(30)
        return y


def call_once(model: Meeting, length: int) -> None:
    with torch.no_grad():
        model(torch.ones(ROWS, TIME, 3), (torch.arange(TIME) < length).expand(ROWS, TIME))


def call(model: Meeting, lengths: list[int]) -> None:
    """Call the model on a thread for each length of a mask."""

    threads = [threading.Thread(target=call_once, args=(model, length)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("hooks_in")
def test_calls_that_overlap_have_their_own_masks() -> None:
    model = Meeting(3)
    with watch(model, mask="mask", rules=False) as w:
        w.step()
        call(model, [1, 4, 6])
        w.step()
        for layer in ("first", "second"):
            assert int(w.latest[layer, "output"].count.sum()) == ROWS * (1 + 4 + 6) * 3
            assert w.coverage()[layer, "output"].unmasked == {}


@pytest.mark.usefixtures("hooks_in")
def test_a_context_is_of_its_thread() -> None:
    model = nn.Linear(3, 3)
    x = torch.ones(ROWS, TIME, 3)
    with watch(model, kinds=("output",), rules=()) as w:
        with w.mask((torch.arange(TIME) < 2).expand(ROWS, TIME)):
            model(x)
            other = threading.Thread(target=model, args=(x,))
            other.start()
            other.join()
        w.step()
        assert int(w.latest["", "output"].count[0]) == ROWS * (2 + TIME)


class Interrupted(nn.Module):
    """Calls `then` between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(3, 3)
        self.then: Callable[[], object] | None = None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.wide(x)
        then, self.then = self.then, None
        if then is not None:
            then()
        return out


def interrupt() -> None:
    raise KeyboardInterrupt  # for which torch calls no hook


MASK = torch.arange(TIME) < torch.tensor([[5], [3], [1], [0]])


@pytest.mark.usefixtures("hooks_in")
def test_the_mask_of_an_interrupted_call_is_of_no_later_call() -> None:
    model, x = Interrupted(), torch.ones(ROWS, TIME, 3)
    with watch(model, mask="mask", rules=()) as w:
        model.then = interrupt
        with suppress(KeyboardInterrupt):
            model(x, MASK)
        model(x)
        model.wide(x)
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == MASK.sum() + 2 * ROWS * TIME
        model.then = interrupt
        with suppress(KeyboardInterrupt):
            model(x, MASK)
        w.step()  # no call is under way any more
        model.wide(x)
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == ROWS * TIME
        with w.mask(MASK):
            model.then = interrupt
            with suppress(KeyboardInterrupt):
                model(x, ~MASK)
            w.step()
            model.wide(x)
            w.step()
        assert int(w.latest["wide", "output"].count[0]) == MASK.sum()
