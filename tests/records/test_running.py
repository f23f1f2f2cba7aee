"""Running: states that come one after the other merge as those of all values together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.running import Column, Rows, Running
from hookstats.records.sparse import Float64, Int64
from hookstats.stats.state import COUNT, M2, MEAN, MOMENTS, TALLIES

States = tuple[Float64, Int64]


def states_of(x: Tensor) -> States:
    stats = channel_stats(x, 1)
    return stats.moments.numpy(), stats.tallies.numpy()


def columns(states: States) -> Column:
    found = dict(zip((*MOMENTS, *TALLIES), (*states[0].T, *states[1].T), strict=True))
    return found.__getitem__


def merged(*pieces: States, rows: Rows | None = None, into: Rows | None = None) -> States:
    n = len(pieces[0][0])
    running = Running(n)
    for piece in pieces:
        running.merge(columns(piece), rows or slice(0, n), into or slice(0, n), n)
    return running.states()


def test_pieces_merge_as_their_values_together() -> None:
    x = torch.randn(60, 7, dtype=torch.float64) * 3 + 100
    x[:20, 1] = torch.nan  # a piece without values
    x[:, 2] = torch.inf  # none at all
    x[20:, 3] = torch.nan  # only one with values
    x[:, 4] = 0.1
    x[5, 5] = -torch.inf
    found = merged(*(states_of(piece) for piece in x.split(20)))
    whole = states_of(x)
    np.testing.assert_array_equal(found[1], whole[1])
    np.testing.assert_allclose(found[0], whole[0], rtol=1e-12)
    assert found[0][4, MEAN] == 0.1  # to the last bit


def test_infinite_sums_of_equal_means_stay_infinite() -> None:
    x = torch.tensor([[1e200], [-1e200]], dtype=torch.float64)
    found, _ = merged(states_of(x), states_of(x))
    assert found[0, MEAN] == 0
    assert found[0, M2] == np.inf


def test_many_rows_and_rows_in_any_order_have_the_same_bits() -> None:
    pieces = [states_of(torch.randn(3, 40_000, dtype=torch.float64) + i) for i in range(3)]
    whole = merged(*pieces)
    alone = slice(39_990, 40_000)
    last = merged(*((moments[alone], tallies[alone]) for moments, tallies in pieces))
    assert np.array_equal(whole[0][alone], last[0])
    order = np.random.default_rng(0).permutation(40_000)
    running = Running(40_000)
    for piece in pieces:
        running.merge(columns(piece), order, order, 40_000)
    assert np.array_equal(running.states()[0], whole[0])
    assert np.array_equal(running.states()[1], whole[1])


def test_other_rows_stay_as_they_are() -> None:
    piece = states_of(torch.randn(5, 3, dtype=torch.float64))
    running = Running(6)
    running.merge(columns(piece), np.array([2, 0]), np.array([4, 1]), 2)
    moments, tallies = running.states()
    assert tallies[:, COUNT].tolist() == [0, 5, 0, 0, 5, 0]
    assert np.array_equal(moments[[4, 1]], piece[0][[2, 0]])
