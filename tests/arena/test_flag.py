"""The flag: threads wait for it, and an interrupt at any moment leaves it of use."""

from __future__ import annotations

import random
import threading
import time

import pytest
from support.interrupts import Alarm

from hookstats.arena.flag import Flag


def test_a_wait_ends_with_the_flag_or_with_its_time() -> None:
    flag = Flag()
    assert not flag.is_set()
    assert not flag.wait(0.01)
    threading.Timer(0.05, flag.set).start()
    began = time.monotonic()
    assert flag.wait(20)
    assert time.monotonic() - began < 10
    flag.set()  # again
    assert flag.is_set()
    assert flag.wait(0)


def test_all_who_wait_are_woken() -> None:
    flag, woken = Flag(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(20))) for _ in range(5)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    flag.set()
    for thread in threads:
        thread.join()
    assert woken == [True] * 5
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("wait", [False, True])
def test_real_interrupts_leave_it_of_use(wait: bool) -> None:
    rng, alarm, interrupts = random.Random(0), Alarm(), 0
    for _ in range(2000):
        flag = Flag()
        if wait:
            flag.set()
        try:
            alarm.set(rng.uniform(1e-6, 2e-5))
            for _ in range(40):
                if wait:
                    flag.wait(1)
                else:
                    flag.set()
            alarm.off()
        except KeyboardInterrupt:
            interrupts += 1
        flag.set()
        assert flag.wait(0)
    assert interrupts > 500
