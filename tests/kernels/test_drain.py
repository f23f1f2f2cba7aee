"""drain_: what comes out of the blocks of a step, against NumPy, and that nothing is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.samples import sparse_of
from torch import Tensor

from hookstats.kernels.ops import drain_, mark_columns
from hookstats.records.sparse import SparseCounts
from hookstats.stats.state import identity_moments

COUNTS = arrays.arrays(
    np.int64,
    st.tuples(st.integers(0, 6), st.just(19)),
    elements=st.sampled_from([0, 0, 0, 0, 0, 1, 2**40]),
)
BLOCKS = st.lists(COUNTS, max_size=3)


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    moments = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    return moments, torch.randint(0, 99, (n, 5), generator=generator)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), BLOCKS, BLOCKS)
def test_rows_come_out_and_nothing_is_left(
    sizes: list[int], counts: list[np.ndarray], channel_counts: list[np.ndarray]
) -> None:
    blocks = [rows(n, seed) for seed, n in enumerate(sizes)]
    moments, tallies = [m for m, _ in blocks], [t for _, t in blocks]
    expected = torch.cat(moments).numpy(), torch.cat(tallies).numpy()
    dense = [torch.tensor(block) for block in counts]
    channel_dense = [torch.tensor(block) for block in channel_counts]
    occupancy = [torch.zeros(len(block), mark_columns(19), dtype=int) for block in dense]
    accumulated = torch.ones(sum(len(block) for block in dense), dtype=int)
    offsets = torch.tensor([0, *np.cumsum(sizes)])
    found = drain_(moments, tallies, dense, occupancy, accumulated, channel_dense, offsets)
    drained = [tensor.numpy() for tensor in found]
    np.testing.assert_array_equal(drained[0].T, expected[0])
    np.testing.assert_array_equal(drained[1].T, expected[1])
    assert [table.shape for table in drained[2:4]] == [(5, len(sizes))] * 2
    hist, channel_hist = SparseCounts(*drained[4:7]), SparseCounts(*drained[7:])
    for got, blocks_of_counts in ((hist, counts), (channel_hist, channel_counts)):
        sparse = sparse_of(np.concatenate([np.empty((0, 19), int), *blocks_of_counts]))
        for part in ("offsets", "slots", "counts"):
            mine, other = getattr(got, part), getattr(sparse, part)
            np.testing.assert_array_equal(mine, other, strict=True)
    for block in moments:
        assert torch.equal(block, identity_moments(len(block)))
    for block in (*tallies, *dense, *channel_dense):
        assert not block.any()


GOOD: dict[str, Any] = {
    "moments": [torch.zeros(3, 5, dtype=torch.float64)],
    "tallies": [torch.zeros(3, 5, dtype=torch.int64)],
    "counts": [torch.zeros(2, 4, dtype=torch.int64)],
    "occupancy": [torch.zeros(2, 2, dtype=torch.int64)],
    "accumulated": torch.zeros(2, dtype=torch.int64),
    "channel_counts": [],
    "offsets": torch.tensor([0, 1, 1, 3]),
}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"moments": []}, "moments has no blocks; expected one or more"),
        ({"moments": [torch.zeros(3, 5)]}, r"moments has a block of Float .* expected .* Double"),
        ({"tallies": [torch.zeros(2, 5, dtype=int)]}, "tallies have 2 rows; expected 3"),
        ({"tallies": [torch.zeros(3, 4, dtype=int)]}, r"expected .* Long \[rows, 5\]"),
        ({"counts": [torch.zeros(2, dtype=int)]}, r"counts has .* 1 dimensions; expected .* slots"),
        ({"occupancy": []}, "occupancy has 0 blocks; expected 1, as many as counts"),
        (
            {"occupancy": [torch.zeros(2, 3, dtype=int)]},
            r"occupancy\[0\] is \[2, 3\]; expected \[2, 2\]",
        ),
        (
            {"accumulated": torch.zeros(3, dtype=int)},
            r"accumulated is Long \[3\]; expected .* Long \[2\]",
        ),
        ({"accumulated": torch.zeros(2)}, r"accumulated is Float \[2\]"),
        ({"channel_counts": [torch.zeros(4, 2, dtype=int).T]}, "channel_counts has a block"),
        ({"offsets": torch.zeros(2)}, r"offsets is Float \[2\]; expected .* Long"),
        ({"offsets": torch.zeros(0, dtype=int)}, r"offsets is \[0\]; expected \[tensors \+ 1\]"),
        ({"offsets": torch.tensor([0, 2, 1, 3])}, "offsets are no ascending numbers from 0 to 3"),
        ({"offsets": torch.tensor([0, 2])}, "offsets are no ascending numbers from 0 to 3"),
        ({"offsets": torch.tensor([1, 3])}, "offsets are no ascending numbers from 0 to 3"),
        (
            {
                "moments": [torch.zeros(n, 5, dtype=torch.float64) for n in (2, 1)],
                "tallies": [torch.zeros(n, 5, dtype=int) for n in (2, 1)],
            },
            "offsets have a tensor of rows 1 to 3; expected none beyond row 2",
        ),
        (
            {"tallies": [torch.zeros(n, 5, dtype=int) for n in (2, 1)]},
            r"moments\[0\] has 3 rows; expected as many as tallies\[0\]",
        ),
    ],
)
def test_other_blocks_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        drain_(**{**GOOD, **bad})


def test_occupancy_past_the_slots_mean_nothing() -> None:
    counts = torch.ones(3, 17, dtype=torch.int64)
    occupancy = torch.tensor([[1, -1]]).repeat(3, 1)  # room for 64 bits, of which 2 are of slots
    channels, accumulated = rows(1, 0), torch.ones(3, dtype=torch.int64)
    states = [channels[0]], [channels[1]], [counts], [occupancy], accumulated, []
    found = drain_(*states, torch.tensor([0, 1]))
    assert found[5].tolist() == [*range(17)] * 3
    assert found[6].tolist() == [1] * 51
    assert not counts.any()
    assert not occupancy.any()


def test_opcheck() -> None:
    operator = torch.ops.hookstats.drain_.default
    utils = ("test_schema", "test_autograd_registration")  # it is not for graphs: no fake kernel
    torch.library.opcheck(operator, (*GOOD.values(),), test_utils=utils)
