"""Masks: the operators and channel_stats leave out the rows of padding, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.capabilities import compare_capabilities
from support.devices import moved, on_cuda, on_gpu
from support.masked import (
    check_masked,
    digest_of_masked,
    expanded,
    layouts,
    masks,
)
from support.oracle import DTYPES, State, accumulate
from support.sampled import sampling
from support.values import LINEAR, LOG, normal, of_dtype
from torch import Tensor

from hookstats.kernels import ops
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats import reference
from hookstats.stats.bins import LogBins
from hookstats.stats.mask import covered_dims
from hookstats.stats.state import identity_moments, identity_tallies

pytestmark = pytest.mark.usefixtures("one_thread")

Update = Callable[..., None]
UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(reference.update_, id="reference", marks=pytest.mark.check),
    pytest.param(on_cuda(ops.update_), id="cuda", marks=on_gpu),
]

SOME = (torch.float32, torch.bfloat16)
EACH = [
    dtype if dtype in SOME else pytest.param(dtype, marks=pytest.mark.check) for dtype in DTYPES
]


@pytest.mark.parametrize("dtype", EACH, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_keeps_the_rows_of_the_mask(update: Update, dtype: torch.dtype) -> None:
    shapes = (
        ((3, 5, 33), (2, 17, 6), (1, 1, 1), (4, 1, 48))
        if update is not reference.update_
        else ((3, 5, 6),)
    )
    for shape in shapes:
        values = of_dtype(dtype, *shape)
        for i, mask in enumerate(masks(*shape[:2]).values()):
            bins = (LOG, LINEAR) if i % 2 else (LINEAR, LOG)
            for x, channel_dim in layouts(values):
                got = accumulate(update, x, channel_dim, *bins, mask=mask)
                check_masked(got, x, channel_dim, mask, *bins)


@pytest.mark.check
@pytest.mark.parametrize(
    "shape", [(8, 130, 96), (3, 700, 84), (2, 40, 1000), (1, 9000, 1)], ids=str
)
def test_large_tensors(shape: tuple[int, int, int]) -> None:
    """Several tasks, segments and blocks of channels, and rows that are not whole vectors."""
    values = normal(*shape).float()
    for mask in map(masks(*shape[:2]).__getitem__, ("right", "random", "all")):
        for x, channel_dim in layouts(values):
            got = accumulate(ops.update_, x, channel_dim, LOG, LINEAR, mask=mask)
            check_masked(got, x, channel_dim, mask, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
def test_expanded_rows_count_where_they_are_kept(update: Update) -> None:
    values = normal(3, 5, 33).float()
    for mask in masks(3, 5).values():
        for x, channel_dim in expanded(values):
            got = accumulate(update, x, channel_dim, LOG, LINEAR, mask=mask)
            check_masked(got, x, channel_dim, mask, LOG, LINEAR)


@pytest.mark.check
@pytest.mark.parametrize("update", UPDATES)
def test_samples_count_what_the_hash_says_of_all_rows(update: Update) -> None:
    """A unit's place is the one in the tensor with its padding."""
    for shape in ((3, 50, 33), (2, 34, 48), (4, 90, 6)):
        values = normal(*shape).float()
        for i, mask in enumerate(masks(*shape[:2]).values()):
            for x, channel_dim in layouts(values):
                how = sampling(i, 2 + i % 7, 3)
                got = accumulate(update, x, channel_dim, LOG, LINEAR, how=how, mask=mask)
                check_masked(got, x, channel_dim, mask, LOG, LINEAR, how)


@pytest.mark.check
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_what_is_not_finite(update: Update, dtype: torch.dtype) -> None:
    """It is counted where it is kept; in padding, it does no harm."""
    values = normal(4, 30, 6).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for special in (torch.nan, torch.inf, -torch.inf):
        values[torch.rand(values.shape, generator=generator) < 0.1] = special
    for mask in masks(4, 30).values():
        for x, channel_dim in layouts(values):
            got = accumulate(update, x, channel_dim, LINEAR, LOG, mask=mask)
            check_masked(got, x, channel_dim, mask, LINEAR, LOG)
    clean = torch.where(masks(4, 30)["right"][..., None], normal(4, 30, 6).to(dtype), torch.nan)
    assert not channel_stats(clean, 2, mask=masks(4, 30)["right"]).nan.any()


@pytest.mark.check
@pytest.mark.parametrize("update", UPDATES)
def test_a_mean_that_is_large(update: Update) -> None:
    for mean, std in ((1e4, 1.0), (1e6, 1e-2), (0.0, 1e19), (0.0, 1e-20)):
        values = (normal(4, 60, 18) * std + mean).float()
        for mask in masks(4, 60).values():
            for x, channel_dim in layouts(values):
                got = accumulate(update, x, channel_dim, mask=mask)
                check_masked(got, x, channel_dim, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_equals_the_statistics_of_the_unpadded_rows(dtype: torch.dtype) -> None:
    values = of_dtype(dtype, 8, 128, 96)
    for name, mask in masks(8, 128).items():
        got = channel_stats(values, 2, LogBins(), mask=mask)
        expected = channel_stats(values[mask], 1, LogBins())
        assert torch.equal(got.tallies, expected.tallies), name
        assert got.hist is not None
        assert expected.hist is not None
        assert torch.equal(got.hist.slot_counts, expected.hist.slot_counts), name
        for statistic in ("mean", "var", "min", "max", "l1_norm"):
            ours, theirs = getattr(got, statistic), getattr(expected, statistic)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


def test_threads_change_no_bit() -> None:
    values = normal(8, 200, 96).float()
    for mask in masks(8, 200).values():
        for x, channel_dim in ((values, 2), (values, None), (values.view(-1, 96), 1)):
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(accumulate(ops.update_, x, channel_dim, LOG, LOG, mask=mask))
            torch.set_num_threads(1)
            for other in results[1:]:
                assert all(map(same_bits, results[0], other))


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a.view(torch.int64), b.view(torch.int64))


def test_one_row_alone_gives_the_bits_of_that_row() -> None:
    values = normal(3, 4, 70).float()
    mask = masks(3, 4)["last"]
    got = accumulate(ops.update_, values, 2, LOG, LINEAR, mask=mask)
    assert all(map(same_bits, got, accumulate(ops.update_, values[2, 3][None], 1, LOG, LINEAR)))


def test_a_mask_that_keeps_nothing_changes_no_state() -> None:
    values = normal(3, 4, 70).float()
    into = accumulate(ops.update_, values, 2, LOG, LINEAR)
    before = State(*(None if t is None else t.clone() for t in into))
    mask = torch.zeros(3, 4, dtype=torch.bool)
    for update in (ops.update_, reference.update_):
        accumulate(lambda *a, u=update: u(*a, None, mask), values, 2, LOG, LINEAR, into)
        assert all(map(same_bits, into, before))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_masks_of_every_dtype_and_strides(update: Update, dtype: torch.dtype) -> None:
    values = normal(6, 10, 5).float()
    mask = masks(6, 10)["random"].to(dtype)
    if dtype not in (torch.bool, torch.uint8):
        mask = -mask  # what is not zero is kept
    gaps = torch.zeros(6, 20, dtype=dtype)[:, ::2].copy_(mask)
    for one in (
        mask,
        mask.T.contiguous().T,
        gaps,
        mask[:1].expand(6, -1),
        mask[:, :1].expand(-1, 10),
    ):
        check_masked(accumulate(update, values, 2, mask=one), values, 2, one)
    flat = mask.reshape(-1)
    rows = values.view(60, 5)
    check_masked(accumulate(update, rows, 1, mask=flat), rows, 1, flat)


def test_where_masks_fit() -> None:
    for mask, shape, channel_dim, covered in (
        ((2, 5), (2, 5, 7), 2, 2),
        ((2, 5), (2, 5, 7), -1, 2),
        ((2, 5), (2, 5, 7), None, 2),
        ((2, 5), (2, 5), None, 2),
        ((2, 5), (10, 7), 1, 1),
        ((2, 5), (10,), None, 1),
        ((2, 5), (2, 5, 7), 1, 0),  # the channels are along the mask
        ((2, 5), (10, 7), 0, 0),
        ((2, 5), (10,), -1, 0),
        ((2, 5), (2, 7, 5), 1, 0),
        ((2, 5), (2, 4, 5, 5), 3, 0),
        ((4, 4), (4, 4, 4, 4), 3, 0),  # the weights of attention
        ((2, 5), (5, 2, 7), 2, 0),
        ((2, 5), (7,), None, 0),
        ((2, 5), (), None, 0),
        ((10,), (10, 7), 1, 1),
        ((10,), (2, 5, 7), 2, 0),
        ((1, 5), (5, 7), 1, 1),
        ((4, 1), (4, 1), 1, 1),
    ):
        assert covered_dims(mask, shape, channel_dim) == covered, (mask, shape, channel_dim)
        x, ones = torch.ones(shape), torch.ones(mask, dtype=torch.bool)
        if covered:
            assert int(channel_stats(x, channel_dim, mask=ones).count.sum()) == x.numel()
            continue
        with pytest.raises(ValueError, match="mask has shape"):
            channel_stats(x, channel_dim, mask=ones)
        with pytest.raises(RuntimeError, match="mask has shape"):
            accumulate(ops.update_, x, channel_dim, mask=ones)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([[True]], "mask = list: expected a tensor"),
        (torch.ones(2, 5), "mask has dtype torch.float32"),
        (torch.ones(2, 1, 1, 5, dtype=torch.bool), r"mask has shape \(2, 1, 1, 5\)"),
        (torch.tensor(True), r"mask has shape \(\)"),
        (torch.ones(2, 6, dtype=torch.bool), r"mask has shape \(2, 6\).*\(2, 5, 7\)"),
        (torch.ones(2, 5, dtype=torch.bool, device="meta"), "mask has device meta"),
        (torch.ones(2, 5, dtype=torch.bool).to_sparse(), "mask has layout torch.sparse_coo"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_what_is_no_mask(bad: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        channel_stats(torch.ones(2, 5, 7), 2, mask=bad)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("bad", [torch.ones(2, 5), torch.ones(2, 5, 7, dtype=torch.bool)], ids=str)
def test_operators_refuse_what_is_no_mask(update: Update, bad: Tensor) -> None:
    with pytest.raises((ValueError, RuntimeError), match="mask"):
        accumulate(update, torch.ones(2, 5, 7), 2, mask=bad)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64], ids=str)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_gpu)])
def test_integers_are_those_of_the_cpu(device: str, dtype: torch.dtype) -> None:
    values = normal(5, 700, 96).float()
    for mask in (one.to(dtype) for one in masks(5, 700).values()):
        for x, channel_dim in ((values, 2), (values, None), (values.bfloat16(), 2)):
            mine = channel_stats(x, channel_dim, LOG, mask=mask)
            there = channel_stats(moved(x, device), channel_dim, LOG, mask=moved(mask, device))
            assert torch.equal(mine.tallies, there.tallies)
            assert mine.hist is not None
            assert there.hist is not None
            assert torch.equal(mine.hist.counts, there.hist.counts)
            torch.testing.assert_close(mine.mean, there.mean, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.check
def test_opcheck() -> None:
    x = torch.randn(4, 10, 33)
    counts = torch.zeros(LOG.slots, dtype=torch.int64)
    channel_counts = torch.zeros(33, LINEAR.slots, dtype=torch.int64)
    given = (
        *(x, 2, identity_moments(33), identity_tallies(33), counts, LOG.descriptor("cpu")),
        *(channel_counts, LINEAR.descriptor("cpu"), None, masks(4, 10)["right"]),
    )
    operator: Any = ops.update_
    torch.library.opcheck(operator, given)


def test_compiled_code_calls_the_operator() -> None:
    state = identity_moments(6), identity_tallies(6)

    def masked(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 2
        ops.update_(y, 2, *state, mask=mask)
        return y

    x, mask = normal(3, 5, 6).float(), masks(3, 5)["right"]
    torch.compile(masked, backend="aot_eager", fullgraph=True)(x, mask)
    check_masked(State(*state, None, None), x * 2, 2, mask)


@pytest.mark.full
def test_instruction_sets_change_no_integer() -> None:
    compare_capabilities(digest_of_masked)
