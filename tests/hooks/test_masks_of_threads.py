"""Masks of calls on several threads: no call has the mask of another."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

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


def test_calls_that_overlap_have_no_mask_and_say_so() -> None:
    model = Meeting(3)
    w = watch(model, SGD(model.parameters(), lr=0.1), mask="mask", rules=False)
    with pytest.warns(RuntimeWarning, match="calls on several threads at once; all rows") as said:
        call(model, [1, 4, 6])
    assert len(said) == 1
    call(model, [2, 2, 5])
    w.step()
    for layer in ("first", "second"):
        assert int(w.latest[layer, "output"].count.sum()) == 2 * 3 * ROWS * TIME * 3
        assert sum(w.coverage()[layer, "output"].unmasked.values()) == 6
    model.barrier = threading.Barrier(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, [4])  # alone again
    w.step()
    assert int(w.latest["first", "output"].count.sum()) == ROWS * 4 * 3
    assert sum(w.coverage()["first", "output"].unmasked.values()) == 6
    w.close()


def test_a_call_that_is_left_alone_has_its_own_mask_again() -> None:
    class Longer(Meeting):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y = super().forward(x, mask)
            if int(mask.sum()) == ROWS * 2:
                other.join(30)
                y = self.alone(y)
            return y

    model = Longer(2)
    w = watch(model, SGD(model.parameters(), lr=0.1), mask="mask", rules=False)
    other = threading.Thread(target=call_once, args=(model, 5))
    other.start()
    with pytest.warns(RuntimeWarning, match="calls on several threads at once"):
        call_once(model, 2)
    w.step()
    assert int(w.latest["alone", "output"].count.sum()) == ROWS * 2 * 3
    assert w.coverage()["alone", "output"].unmasked == {}
    w.close()
