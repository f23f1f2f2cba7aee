"""Pages: states lie apart from malloc's heap, zero at first, and are each process's own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hookstats.arena import pages
from hookstats.arena.arena import Arena
from hookstats.records.record import SiteInfo
from hookstats.stats.bins import LogBins

LEAST = pages._LEAST_BYTES // 8


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, see mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@pytest.fixture
def malloced() -> Callable[[], int]:
    """The bytes that malloc has in use."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, TypeError):
        pytest.skip("this C library has no mallinfo2 (glibc has it from 2.33 on)")
    mallinfo.restype = _MallInfo

    def used() -> int:
        info = mallinfo()
        return int(info.uordblks) + int(info.hblkhd)

    return used


@pytest.mark.parametrize("words", [0, 1, 31, LEAST - 1, LEAST, LEAST + 1, 99_991])
def test_words_are_zero_and_may_be_written(words: int) -> None:
    memory = pages.zeros(words)
    assert memory.shape == (words,)
    assert memory.dtype == np.int64
    assert not memory.any()
    memory[:] = np.arange(words)
    assert (memory[::-1] == np.arange(words)[::-1]).all()


def test_memory_stays_for_as_long_as_a_view_does() -> None:
    view = torch.from_numpy(pages.zeros(99_991)).view(torch.float64)[7:]
    view.fill_(3.0)
    others = [pages.zeros(99_991) for _ in range(8)]
    for other in others:
        other[:] = -1
    assert bool((view == 3.0).all())


def test_more_than_there_is() -> None:
    with pytest.raises(MemoryError, match=r"bytes: .*memory"):
        pages.zeros(1 << 58)


def test_states_are_not_in_the_heap(malloced: Callable[[], int]) -> None:
    arena = Arena(LogBins(), None)
    device = torch.device("cpu")
    arena.accumulator(SiteInfo("first", "output", 1, 1, (1,), "float32"), device)
    before = malloced()
    for name in range(40):
        info = SiteInfo(str(name), "output", 5_000, 1, (2, 5_000), "float32")
        arena.accumulator(info, device).fold(torch.ones(2, 5_000), 1)
    states = 2 * 40 * 5_000 * arena.shelves[device].row_bytes
    assert malloced() - before < states / 16
    record = arena.swap().to_record(0, 0)
    assert all(record[str(name), "output"].mean.tolist() == [1.0] * 5_000 for name in range(40))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_a_forked_process_writes_into_its_own() -> None:
    code = """
import os
from hookstats.arena import pages
memory = pages.zeros(99_991)
memory[:] = 5
child = os.fork()
if child == 0:
    same = bool((memory == 5).all())
    memory[:] = 7
    os._exit(0 if same else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), memory.min(), memory.max())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "5", "5"]
