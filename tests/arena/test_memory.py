"""Memory: blocks are used again once nobody has them, and no earlier."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.interrupts import Interrupt

from hookstats.arena import memory
from hookstats.arena.arena import Arena
from hookstats.arena.memory import Memory
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64, Int64


def column(block: Int64) -> Float64:
    return block[2:][1:7].view(np.float64).reshape(2, 3).T


def column_of_tensor(block: Int64) -> Float64:
    made: Float64 = torch.from_numpy(block)[3:9].view(torch.float64).numpy().T
    return made


@pytest.mark.parametrize("view", [column, column_of_tensor])
def test_a_block_comes_again_when_the_last_of_its_arrays_is_gone(
    view: Callable[[Int64], Float64],
) -> None:
    blocks = Memory()
    block = blocks.take(33)
    at = block.ctypes.data
    block[:] = 7
    last = view(block)
    del block
    others = [blocks.take(33) for _ in range(3)]
    assert all(other.ctypes.data != at for other in others)
    for other in others:
        other.fill(-1)
    assert (last.view(np.int64) == 7).all()
    del last
    assert blocks.take(33).ctypes.data == at


def test_blocks_of_another_size_are_others() -> None:
    blocks = Memory()
    small = blocks.take(3)
    large = blocks.take(997)
    assert (len(small), len(large)) == (3, 997)
    del small  # of a size that is not asked for any more
    again = [blocks.take(997) for _ in range(2)]
    assert [len(block) for block in again] == [997, 997]
    assert len({block.ctypes.data for block in (large, *again)}) == 3


@pytest.mark.parametrize(("most", "kept"), [(0, 1), (3 * 8 * 31, 3)])
def test_no_more_is_kept_than_was_said(
    most: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MOST_FREE", most)
    blocks = Memory()
    lent = [blocks.take(31) for _ in range(5)]
    assert len({block.ctypes.data for block in lent}) == 5
    lent.clear()
    lent.append(blocks.take(31))  # of what was kept
    assert len(blocks._blocks.free) == kept - 1


def test_no_python_runs_as_a_block_is_given_back() -> None:
    """An interrupt that comes in a weak reference's callback is lost."""
    lent = [Memory().take(31)]
    events: list[str] = []
    sys.setprofile(lambda frame, event, _: events.append(event))
    lent.clear()
    sys.setprofile(None)
    assert "call" not in events


def test_an_interrupt_at_any_line_loses_a_block_at_most() -> None:
    at, reached = 0, True
    while reached:
        at += 1
        blocks = Memory()
        blocks.take(31)
        with Interrupt(at, KeyboardInterrupt) as interruption:
            blocks.take(31)
        reached = interruption.reached
        kept, other = blocks.take(31), blocks.take(31)
        assert len(kept) == len(other) == 31
        assert kept.ctypes.data != other.ctypes.data
    assert at > 10


def test_any_thread_may_give_back() -> None:
    blocks = Memory()
    lent = [blocks.take(31)]
    at = lent[0].ctypes.data
    thread = threading.Thread(target=lent.clear)
    thread.start()
    thread.join()
    assert blocks.take(31).ctypes.data == at


def test_records_that_are_kept_keep_their_numbers() -> None:
    arena = Arena(None, None)
    info = SiteInfo("a", "output", 2, 1, (3, 2), "float32")
    site = arena.accumulator(info, torch.device("cpu"))
    records, places = [], set()
    for step in range(8):
        site.fold(torch.full((3, 2), float(step)), 1)
        record = arena.swap().to_record(step, 0)
        places.add(record.moments.ctypes.data)
        if step % 2 == 0:
            records.append(record)
        del record
    for kept in records:
        assert kept["a", "output"].mean.tolist() == [kept.step] * 2
        assert kept.whole.mean.tolist() == [kept.step]
    assert len(places) < 8
