"""Mailbox: when the flush thread sleeps, what wakes it, and what it takes together."""

from __future__ import annotations

import threading
import time

import torch
from support.closed import Closed
from torch import nn

import hookstats as hs
from hookstats.arena.arena import BYTES_AHEAD
from hookstats.arena.flag import Flag
from hookstats.watching.mailbox import TOGETHER, Mailbox
from hookstats.watching.requests import Drain, Scalars, Step


class Small(Closed):
    is_small = True


def step(number: int, closed: Closed | None = None) -> Step:
    return Step(closed or Small(), number, None, ())


def took(mailbox: Mailbox) -> float:
    """The seconds until the next request is there."""
    began = time.monotonic()
    assert mailbox.take(None) is not None
    return time.monotonic() - began


def sleeping(seconds: float = 5.0) -> Mailbox:
    """One that just gave a step, and has the next one; it would sleep for so long."""
    mailbox = Mailbox()
    mailbox.rest = seconds
    mailbox.put(step(0))
    assert took(mailbox) < seconds
    mailbox.put(step(1))
    return mailbox


def test_a_step_after_a_step_waits_for_others() -> None:
    assert took(sleeping(0.3)) >= 0.3


class Large(Closed):
    """A step of which four fill what may wait."""

    nbytes = BYTES_AHEAD // 4


def test_what_somebody_waits_for_and_what_is_enough_ends_the_sleep() -> None:
    for ring in (
        lambda mailbox: mailbox.hurry(Drain(Flag(), disk=False)),
        lambda mailbox: [mailbox.put(step(2 + i, Large())) for i in range(4)],
        lambda mailbox: [mailbox.put(step(2 + i)) for i in range(TOGETHER)],
        Mailbox.ring,
    ):
        mailbox = sleeping(60.0)
        thread = threading.Timer(0.2, ring, (mailbox,))
        thread.start()
        assert took(mailbox) < 50
        thread.join()


def test_steps_that_nobody_has_copied_out_are_copied_out_in_the_sleep() -> None:
    class Last(Large):
        """Ends the sleep, which would last for a minute, once it is copied out."""

        def take_out(self) -> None:
            super().take_out()
            mailbox.ring()

    mailbox, closed = sleeping(60.0), [Large(), Large(error=MemoryError()), Last()]

    def put() -> None:
        for i, one in enumerate(closed):
            mailbox.put(step(2 + i, one))

    later = threading.Timer(0.1, put)
    later.start()
    assert took(mailbox) < 50
    later.join()
    assert [one.taken for one in closed] == [1, 1, 1]
    assert [each.step for each in mailbox.more(step(1))] == [1, 2, 3, 4]


def test_steps_that_come_as_fast_as_they_are_copied_out_do_not_keep_it_asleep() -> None:
    class Endless(Closed):
        """A step that takes a while to copy, in which the next one comes."""

        nbytes = 0

        def take_out(self) -> None:
            time.sleep(0.05)
            mailbox.put(step(2 + len(mailbox), Endless()))

    mailbox = sleeping(0.3)
    mailbox.put(step(2, Endless()))
    assert took(mailbox) < 5.0
    assert len(mailbox) < TOGETHER


def test_there_is_no_sleep_before_what_somebody_waits_for() -> None:
    mailbox = sleeping(60.0)
    mailbox.put(step(2))
    mailbox.hurry(Drain(Flag(), disk=False))
    assert took(mailbox) < 50  # steps that came before it
    assert took(mailbox) < 50
    assert took(mailbox) < 50
    mailbox.put(Scalars(()))
    assert took(mailbox) < 50  # nothing was recorded in between


def test_a_request_that_an_interrupt_kept_away_ends_one_sleep_alone() -> None:
    mailbox = sleeping(0.3)
    mailbox._waited_for.append(Drain(Flag(), disk=False))  # and then Ctrl-C
    took(mailbox)
    later = threading.Timer(0.05, mailbox.put, (step(2),))
    later.start()
    assert took(mailbox) >= 0.3
    later.join()


def test_steps_are_taken_together_until_training_goes_back() -> None:
    mailbox = Mailbox()
    for number in (1, 2, 5, 3, 4):
        mailbox.put(step(number))
    mailbox.put(Scalars(()))
    mailbox.put(step(6))
    found = []
    for _ in range(4):
        request = mailbox.take(None)
        if isinstance(request, Step):
            found.append([each.step for each in mailbox.more(request)])
        else:
            found.append([])
        mailbox.rest = 0.0
    assert found == [[1, 2, 5], [3, 4], [], [6]]


def test_small_steps_wait_and_are_all_there_when_asked_for() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, rules=()) as w:
        w._flusher.mailbox.rest = 60.0
        for n in range(5):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            assert w._arena.stalls == 0
            if n == 3:
                assert w.latest.step == 3
        assert w.latest.step == 4
