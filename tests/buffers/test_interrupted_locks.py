"""Locks and the like: what an interrupt entered is left, wherever the interrupt comes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pytest
from support.interrupts import Alarm

from hookstats._torch import is_torch_function_enabled
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.buffers.lock import Whole, lock
from hookstats.hooks.readable import without_torch_function
from hookstats.kernels import native

INTERRUPTS = 2000


def is_free(made: AbstractContextManager[object]) -> bool:
    """Whether another thread can enter; as long as it cannot, it waits a moment."""
    entered = threading.Event()

    def enter() -> None:
        with made:
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(10)


def interrupt(enter: Callable[[], None]) -> None:
    """Interrupt at random moments what calls `enter` over and over."""
    rng, alarm = random.Random(0), Alarm()
    for _ in range(INTERRUPTS):
        with suppress(KeyboardInterrupt):
            alarm.set(rng.uniform(1e-6, 3e-5))
            while True:
                enter()


@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize(
    "make", [lock, lambda: DoubleBuffer(None, None).lock], ids=["own", "buffers"]
)
def test_interrupts_leave_no_lock_locked(
    make: Callable[[], AbstractContextManager[object]],
) -> None:
    made = make()

    def enter() -> None:
        with made, made:
            pass

    interrupt(enter)
    assert is_free(made)


def test_interrupts_leave_torch_functions_on() -> None:
    def enter() -> None:
        with without_torch_function():
            pass

    interrupt(enter)
    assert is_torch_function_enabled()


class Interrupted:
    """A context; `now` has an interrupt come before it is entered, or after."""

    def __init__(self) -> None:
        self.depth = 0
        self.now = ""

    def __enter__(self) -> None:
        if self.now == "before":
            raise KeyboardInterrupt
        self.depth += 1
        if self.now == "after":
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


@pytest.mark.parametrize("now", ["before", "after"])
def test_what_an_interrupt_entered_is_left(now: str) -> None:
    """On any Python; a context that was entered before stays so."""
    context = Interrupted()
    made = Whole(context, lambda: context.depth)
    with made:
        assert context.depth == 1
        context.now = now
        with pytest.raises(KeyboardInterrupt), made:
            pytest.fail("the block is not reached")
        assert context.depth == 1
    assert context.depth == 0


def test_the_double_buffer_says_how_often_a_thread_holds_its_lock() -> None:
    buffers = DoubleBuffer(None, None)
    if buffers.native is None:
        pytest.skip(f"no C++ hooks: {native.why_not}")
    depths = [buffers.native.depth()]
    with buffers.lock:
        depths.append(buffers.native.depth())
        with buffers.lock:
            depths.append(buffers.native.depth())
        thread = threading.Thread(target=lambda: depths.append(buffers.native.depth()))
        thread.start()
        thread.join()
    depths.append(buffers.native.depth())
    assert depths == [0, 1, 2, 0, 0]
