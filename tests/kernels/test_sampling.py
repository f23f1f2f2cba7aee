"""Sampled histograms: the operators count what the hash says, and sum over everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.capabilities import compare_capabilities
from support.oracle import DTYPES, State, accumulate, check
from support.sampled import (
    check_counts,
    digest_of_sample,
    layouts,
    sampling,
)
from support.values import LINEAR, LOG, normal, of_dtype
from torch import Tensor

from hookstats.kernels import ops
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats import reference
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.state import identity_moments, identity_tallies

pytestmark = pytest.mark.usefixtures("one_thread")

Update = Callable[..., None]
UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(reference.update_, id="reference", marks=pytest.mark.check),
]
SOME = (torch.float32, torch.bfloat16, torch.uint8)
EACH = [
    dtype if dtype in SOME else pytest.param(dtype, marks=pytest.mark.check) for dtype in DTYPES
]


@pytest.mark.parametrize("dtype", EACH, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_counts_what_the_hash_says(update: Update, dtype: torch.dtype) -> None:
    for n in (0, 1, 31, 33, 997) if update is ops.update_ else (33,):
        for i, (x, channel_dim) in enumerate(layouts(of_dtype(dtype, 5, n))):
            how = sampling(i, 2 + i % 7, 3)
            bins: Bins = LOG if i % 2 else LINEAR
            channel_bins: Bins = LINEAR if i % 2 else LOG
            got = accumulate(update, x, channel_dim, bins, channel_bins, how=how)
            check(State(got.moments, got.tallies, None, None), x, channel_dim)
            check_counts(got, x, channel_dim, bins, channel_bins, how)


@pytest.mark.check
def test_large_tensors_in_every_layout() -> None:
    """Several tasks, segments, blocks of channels and vectors that are not whole."""
    for values in (normal(3, 40_004).float(), normal(1000, 84).float(), normal(70, 1800).float()):
        for x, channel_dim in layouts(values):
            how = sampling(5, 8, 3)
            got = accumulate(ops.update_, x, channel_dim, LOG, LINEAR, how=how)
            check_counts(got, x, channel_dim, LOG, LINEAR, how)


def test_one_may_be_sampled_and_the_other_whole() -> None:
    for x, channel_dim in layouts(normal(6, 500).float()):
        for how in (sampling(1, 8, 1), sampling(1, 1, 8), sampling(1, 1, 1)):
            got = accumulate(ops.update_, x, channel_dim, LOG, LINEAR, how=how)
            check_counts(got, x, channel_dim, LOG, LINEAR, how)


@pytest.mark.check
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_what_is_not_finite_is_left_out(update: Update, dtype: torch.dtype) -> None:
    values = normal(4, 600).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for special in (torch.nan, torch.inf, -torch.inf):
        values[torch.rand(values.shape, generator=generator) < 0.1] = special
    values[2] = torch.nan
    for x, channel_dim in layouts(values):
        how = sampling(2, 3, 2)
        got = accumulate(update, x, channel_dim, LINEAR, LOG, how=how)
        check_counts(got, x, channel_dim, LINEAR, LOG, how)


@pytest.mark.check
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "bins", [LogBins(), LogBins(0), LogBins(6), LogBins(3, -127, 100), LogBins(3, -100)], ids=str
)
def test_log_bins_of_every_pattern(bins: LogBins, dtype: torch.dtype) -> None:
    """Zeros of either sign, subnormals, infinities, NaNs; more of them than a counter holds."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (3, 100_003), generator=generator).int()
    values = torch.where(patterns % 8 == 0, patterns >> 20 << 31, patterns).view(torch.float32)
    assert ((values == 0) & values.signbit()).any()
    x = values.to(dtype)
    for channel_dim in (None, 0):
        got = accumulate(ops.update_, x, channel_dim, bins, bins, how=sampling(3, 2, 3))
        check_counts(got, x, channel_dim, bins, bins, sampling(3, 2, 3))


def test_no_moment_depends_on_the_sampling() -> None:
    for x, channel_dim in ((normal(6, 50_000).float(), 0), (normal(900, 300).bfloat16(), 1)):
        whole = accumulate(ops.update_, x, channel_dim, LOG, LINEAR, how=sampling(0, 1, 1))
        sampled = accumulate(ops.update_, x, channel_dim, LOG, LINEAR, how=sampling(0, 8, 8))
        assert torch.equal(sampled.moments, whole.moments)
        assert torch.equal(sampled.tallies, whole.tallies)


@pytest.mark.parametrize("of", [ops, reference])
def test_nothing_is_accumulated_where_the_step_is_not_recorded(of: Any) -> None:
    """The operators read that as they run: a graph that has them runs in all steps."""
    for x, channel_dim in layouts(normal(6, 500).float()):
        how = torch.tensor([1, 8, 1, 0])
        got = accumulate(of.update_, x, channel_dim, LOG, LINEAR, how=how)
        counts: Any = (got.counts, LOG), (got.channel_counts, LINEAR)
        pairs = [part for each, bins in counts for part in ([each], bins.descriptor(x.device))]
        many = [x], channel_dim, [got.moments], [got.tallies], *pairs, None, how
        of.update_many_(*many)
        assert torch.equal(got.moments, identity_moments(len(got.moments)))
        assert not any(part.any() for part in (got.tallies, counts[0][0], counts[1][0]))
        how[3] = 1
        of.update_many_(*many)
        expected = accumulate(of.update_, x, channel_dim, LOG, LINEAR, how=how[:3])
        assert all(map(equal, got, expected))


@pytest.mark.check
def test_threads_change_no_count() -> None:
    for x, channel_dim in layouts(normal(6, 50_000).float()):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(accumulate(ops.update_, x, channel_dim, LOG, LOG, how=sampling(1, 8, 8)))
        torch.set_num_threads(1)
        for other in results[1:]:
            assert all(map(equal, results[0], other))


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a, b)


@pytest.mark.check
@pytest.mark.parametrize(
    "shape", [(2, 17, 9, 11), (300, 33, 3, 3), (70, 130, 7, 7), (9, 800, 7, 7), (7, 200, 14, 14)]
)
@pytest.mark.parametrize("every", [(8, 2), (2, 3), (13, 200)])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_maps_in_either_memory_format(
    shape: tuple[int, ...], every: tuple[int, int], format: torch.memory_format
) -> None:
    x = normal(*shape).float().to(memory_format=format)
    how = sampling(4, *every)
    check_counts(accumulate(ops.update_, x, 1, LOG, LINEAR, how=how), x, 1, LOG, LINEAR, how)


@pytest.mark.parametrize("update", UPDATES)
def test_what_expand_repeats_counts_as_often(update: Update) -> None:
    base = normal(40, 1, 30).float()
    how = sampling(2, 4, 2)
    one = accumulate(update, base, 0, LOG, LINEAR, how=how)
    repeated = accumulate(update, base.expand(40, 3, 30), 0, LOG, LINEAR, how=how)
    assert one.counts is not None
    assert one.channel_counts is not None
    assert torch.equal(repeated.counts, 3 * one.counts)  # type: ignore[arg-type]
    assert torch.equal(repeated.channel_counts, 3 * one.channel_counts)  # type: ignore[arg-type]


@pytest.mark.parametrize("update", UPDATES)
def test_expanded_channels_have_their_own_elements(update: Update) -> None:
    x = normal(50, 1).float().expand(50, 12)
    how = sampling(1, 3, 2)
    got = accumulate(update, x, 1, LOG, LINEAR, how=how)
    check_counts(got, x, 1, LOG, LINEAR, how)


def test_every_step_has_its_own_choice() -> None:
    x = torch.arange(640_000.0)
    bins = LinearBins(10_000, 0.0, 640_000.0, sample=4)
    steps = [channel_stats(x, None, bins, step=step).hist for step in range(20)]
    found = {tuple(hist.slot_counts[0].tolist()) for hist in steps if hist is not None}
    assert len(found) == 20
    assert all(hist is not None and hist.counted == 160_000 for hist in steps)


def test_auto_leaves_small_tensors_whole() -> None:
    bins = LogBins(sample="auto")
    for n, least, most in ((65_536, 65_536, 65_536), (131_071, 131_071, 131_071)):
        hist = channel_stats(torch.ones(n), None, bins).hist
        assert hist is not None
        assert least <= int(hist.counted) <= most
    for n in (131_072, 200_000, 1_000_000):
        hist = channel_stats(torch.ones(n), None, bins).hist
        assert hist is not None
        assert 65_536 <= int(hist.counted) < 131_072
        assert int(hist.count) == n


@pytest.mark.parametrize("scale", [None, 4.0])
def test_many_are_as_one_by_one(scale: float | None) -> None:
    xs = [normal(50, 40).float(), normal(7, 3).float().T, normal(3, 700).bfloat16()]
    how, divisor = sampling(9, 3, 2), None if scale is None else torch.tensor(scale)
    counted = []
    for update in (ops.update_many_, reference.update_many_):
        moments = [identity_moments(x.shape[0]) for x in xs]
        tallies = [identity_tallies(x.shape[0]) for x in xs]
        counts = [torch.zeros(LOG.slots, dtype=torch.int64) for _ in xs]
        channel_counts = [torch.zeros(x.shape[0], LINEAR.slots, dtype=torch.int64) for x in xs]
        descriptors = LOG.descriptor("cpu"), LINEAR.descriptor("cpu")
        update(
            *(xs, 0, moments, tallies, counts, descriptors[0]),
            *(channel_counts, descriptors[1], divisor, how),
        )
        counted.append((counts, channel_counts))
    for x, *of_both in zip(xs, *counted[0], *counted[1], strict=True):
        assert torch.equal(of_both[0], of_both[2])
        assert torch.equal(of_both[1], of_both[3])
        scaled = x if scale is None else x / scale
        one = accumulate(ops.update_, scaled, 0, LOG, LINEAR, how=how)
        assert torch.equal(one.counts, of_both[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    "bad",
    [torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.zeros(1, 3, dtype=torch.int64)],
    ids=str,
)
def test_refuses_other_sampling(update: Update, bad: Tensor) -> None:
    with pytest.raises((ValueError, RuntimeError), match="sampling"):
        accumulate(update, torch.zeros(4), None, LOG, LINEAR, how=bad)


@pytest.mark.check
def test_opcheck() -> None:
    x = torch.randn(40, 33)
    state = identity_moments(33), identity_tallies(33)
    counts = torch.zeros(LOG.slots, dtype=torch.int64)
    channel_counts = torch.zeros(33, LINEAR.slots, dtype=torch.int64)
    given = (
        *(x, 1, *state, counts, LOG.descriptor("cpu")),
        *(channel_counts, LINEAR.descriptor("cpu"), sampling(0, 8, 0)),
    )
    operator: Any = ops.update_
    torch.library.opcheck(operator, given)


@pytest.mark.full
def test_instruction_sets_change_no_count() -> None:
    compare_capabilities(digest_of_sample)
