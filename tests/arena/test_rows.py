"""Counters: rows of several blocks, copied out and made zero."""

from __future__ import annotations

import numpy as np
import pytest

from hookstats.arena import rows
from hookstats.arena.rows import Counters


@pytest.mark.parametrize("n", [0, 1, 2, 3, 31])
def test_rows_of_several_blocks(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 3)
    counters = Counters(2)
    for i in range(n):
        for kind, by_buffer in enumerate(counters.row(i)):
            for buffer, counter in enumerate(by_buffer):
                counter[0] += 1 + i + 100 * kind + 1000 * buffer
    expected = np.arange(1, n + 1) + np.array([[0], [100]])
    for first in {0, n // 2, n}:
        for buffer in (0, 1):
            found = counters.first(first, buffer)
            np.testing.assert_array_equal(found, (expected + 1000 * buffer)[:, :first], strict=True)
            found[:] = -1  # of a copy
    for cleared in (n // 2, n):
        counters.clear(cleared, 1)
        left = (expected + 1000) * (np.arange(n) >= cleared)
        np.testing.assert_array_equal(counters.first(n, 1), left)
        np.testing.assert_array_equal(counters.first(n, 0), expected)
