"""LinearBins and LogBins: their edges, their refusals, and which slot a value falls into."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.oracle import accumulate, log_slots, slot_counts
from torch import Tensor

from hookstats.kernels import ops
from hookstats.stats import reference
from hookstats.stats.bins import Bins, LinearBins, LogBins, bins_from_dict

LINEAR = [
    LinearBins(1, 0.0, 1.0),
    LinearBins(64, -4.0, 4.0),
    LinearBins(7, -0.1, 0.3),
    LinearBins(100, 1e6, 1e6 + 50),
    LinearBins(33, -1e-40, 3e-39),
    LinearBins(10, -3e38, 0.0),
]
LOG = [
    LogBins(),
    LogBins(0),
    LogBins(7),
    LogBins(3, -126, 127),
    LogBins(2, -10, 4),
    LogBins(1, -127, -120),
    LogBins(5, 127, 127),
    LogBins(0, 0, 0),
]
UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(reference.update_, id="reference"),
]


def neighbours(values: Tensor) -> Tensor:
    """Each float32 value with the floats next below and above it."""
    infinity = torch.tensor(torch.inf)
    return torch.cat((values, values.nextafter(infinity), values.nextafter(-infinity)))


def any_float32(n: int) -> Tensor:
    """Random bit patterns: every exponent, subnormals, NaN and infinities."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (n,), generator=generator)
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("bins", LINEAR, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_linear_counts_are_bitwise_those_of_searchsorted(
    update: Callable[..., None], bins: LinearBins
) -> None:
    edges = torch.linspace(bins.lo, bins.hi, bins.bins + 1, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    inside = torch.rand(20_000, generator=generator) * (bins.hi - bins.lo) * 1.1 + bins.lo
    values = torch.cat((neighbours(edges), inside, any_float32(1000)))
    finite = values[values.isfinite()]
    slots = torch.searchsorted(edges, finite, right=True)
    slots[finite == edges[-1]] = bins.bins
    expected = torch.bincount(slots, minlength=bins.slots)
    got = accumulate(update, values, None, bins, bins)
    assert got.counts is not None
    assert got.channel_counts is not None
    assert torch.equal(got.counts, expected)
    assert torch.equal(got.channel_counts, expected[None])


@pytest.mark.parametrize("bins", LINEAR, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_every_edge_by_itself(update: Callable[..., None], bins: LinearBins) -> None:
    """A channel for each edge and each neighbour: no two errors can cancel."""
    values = neighbours(torch.linspace(bins.lo, bins.hi, bins.bins + 1))
    got = accumulate(update, values[:, None], 0, channel_bins=bins).channel_counts
    assert got is not None
    expected = np.stack([slot_counts(v, bins) for v in values.double()[:, None].numpy()])
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_linear_bins_of_other_dtypes_compare_exactly(
    update: Callable[..., None], dtype: torch.dtype
) -> None:
    bins = LinearBins(10, -1.7, 3.3)
    if dtype == torch.float64:
        edges = bins.edges().double()
        values = torch.cat((edges, edges * (1 + 1e-15), edges * (1 - 1e-15)))
    else:
        values = torch.arange(-5, 6).to(dtype)
    got = accumulate(update, values, None, bins).counts
    assert got is not None
    np.testing.assert_array_equal(got.numpy(), slot_counts(values.double().numpy(), bins))


@pytest.mark.parametrize("bins", LOG, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_log_counts_are_those_of_frexp(update: Callable[..., None], bins: LogBins) -> None:
    edges = bins.edges().to(torch.float32)
    zeros = torch.tensor([0.0, -0.0])
    values = torch.cat((neighbours(edges), zeros, any_float32(50_000)))
    got = accumulate(update, values, None, bins, bins)
    expected = slot_counts(values.double().numpy(), bins)
    assert got.counts is not None
    assert got.channel_counts is not None
    np.testing.assert_array_equal(got.counts.numpy(), expected)
    np.testing.assert_array_equal(got.channel_counts[0].numpy(), expected)


@pytest.mark.parametrize("bins", [LogBins(), LogBins(2, -10, 4)], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_log_bins_of_float64_round_toward_zero(update: Callable[..., None], bins: LogBins) -> None:
    largest = float(np.finfo(np.float32).max)
    edges = bins.edges()[::29]
    special = torch.tensor(
        [1e-320, 1e-46, 2.0**-150, largest, largest * (1 + 1e-9), 1e300], dtype=torch.float64
    )
    values = torch.cat((edges, edges * (1 + 1e-15), edges * (1 - 1e-15), special, -special))
    got = accumulate(update, values[:, None], 0, channel_bins=bins).channel_counts
    assert got is not None
    slots = got.argmax(1).numpy()
    np.testing.assert_array_equal(slots, log_slots(values.numpy(), bins))
    zero = bins.bins // 2 + 1
    assert (slots[values.numpy() != 0] != zero).all()


@pytest.mark.parametrize("bins", LOG, ids=str)
def test_log_slots_lie_between_their_edges(bins: LogBins) -> None:
    """edges() and update_ agree: (lo, hi] below zero, [lo, hi) above, zero by itself."""
    edges = bins.edges()
    values = torch.cat((neighbours(edges.float()), any_float32(50_000)))
    values = values[values.isfinite()].double()
    slots = torch.where(
        values > 0,
        torch.searchsorted(edges, values, right=True),
        torch.searchsorted(edges, values, right=False),
    )
    slots[values == 0] = bins.bins // 2 + 1
    got = accumulate(ops.update_, values.float(), None, bins).counts
    assert got is not None
    assert torch.equal(got, torch.bincount(slots, minlength=bins.slots))


def test_integers_have_log_bins() -> None:
    values = torch.tensor([0, 1, 2, 3, -1, 2**24 + 1, 2**63 - 1, -(2**63)])
    bins = LogBins(3)
    got = accumulate(ops.update_, values, None, bins).counts
    assert got is not None
    np.testing.assert_array_equal(got.numpy(), slot_counts(values.double().numpy(), bins))


@pytest.mark.parametrize("bins", [*LINEAR, *LOG], ids=str)
def test_edges_ascend_one_more_than_bins(bins: Bins) -> None:
    edges = bins.edges()
    assert edges.shape == (bins.bins + 1,)
    assert bins.slots == bins.bins + 2
    flat = (edges.diff() == 0).nonzero().flatten().tolist()
    assert (edges.diff() >= 0).all()
    assert flat == ([] if isinstance(bins, LinearBins) else [bins.bins // 2])


def test_linear_edges_are_linspace() -> None:
    edges = LinearBins(64, -4.0, 4.0).edges()
    assert torch.equal(edges, torch.linspace(-4.0, 4.0, 65, dtype=torch.float32))


def test_log_edges_by_hand() -> None:
    assert LogBins(1, 0, 1).edges().tolist() == [
        *(-4.0, -3.0, -2.0, -1.5, -1.0, 0.0),
        *(0.0, 1.0, 1.5, 2.0, 3.0, 4.0),
    ]
    assert LogBins(1, -127, -126).edges()[5:].tolist() == [
        *(0.0, 2.0**-127, 2.0**-126, 1.5 * 2.0**-126, 2.0**-125),
    ]
    assert LogBins().edges()[-1] == 2.0**128


@pytest.mark.parametrize("bins", [*LINEAR, *LOG], ids=str)
def test_json_pickle_and_copies_give_back_equal_bins(bins: Bins) -> None:
    assert bins_from_dict(json.loads(json.dumps(bins.to_dict()))) == bins
    twin = pickle.loads(pickle.dumps(bins))
    assert twin == bins
    assert hash(twin) == hash(bins)
    assert torch.equal(twin.descriptor("cpu"), bins.descriptor("cpu"))
    assert copy.deepcopy(bins) == bins


def test_descriptor_is_made_once_and_safe_from_inference_mode() -> None:
    with torch.inference_mode():
        all_bins: list[Bins] = [LinearBins(4, 0.0, 1.0), LogBins()]
        descriptors = [bins.descriptor("cpu") for bins in all_bins]
    for bins, descriptor in zip(all_bins, descriptors, strict=True):
        assert not descriptor.is_inference()
        assert bins.descriptor(torch.device("cpu")) is descriptor


def test_edges_are_the_callers_own() -> None:
    bins = LinearBins(4, 0.0, 1.0)
    bins.edges().zero_()
    assert torch.equal(bins.edges(), torch.linspace(0, 1, 5))


def test_bins_are_values() -> None:
    assert LinearBins(4, 0, 1) == LinearBins(4, 0.0, 1.0)
    assert LogBins(3) != LogBins(4)
    assert LinearBins(4, 0.0, 1.0) != LogBins()
    with pytest.raises(AttributeError):
        LinearBins(4, 0.0, 1.0).lo = 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearBins(0, 0.0, 1.0), "bins = 0: expected an integer in 1"),
        (lambda: LinearBins(2.5, 0.0, 1.0), "bins = 2.5: expected an integer"),
        (lambda: LinearBins("9", 0.0, 1.0), "bins = '9': expected an integer"),
        (lambda: LinearBins(4, 1.0, 1.0), "lo = 1.0 and hi = 1.0: expected lo < hi"),
        (lambda: LinearBins(4, 2.0, 1.0), "expected lo < hi"),
        (lambda: LinearBins(4, float("nan"), 1.0), "lo = nan: expected a finite float32"),
        (lambda: LinearBins(4, 0.0, float("inf")), "hi = inf: expected a finite float32"),
        (lambda: LinearBins(4, 0.0, 1e39), "hi = 1e+39: expected a finite float32"),
        (lambda: LinearBins(4, None, 1.0), "lo = None: expected a finite float32"),
        (lambda: LinearBins(4, -3e38, 3e38), "expected finite, distinct float32 edges"),
        (lambda: LinearBins(100, 1.0, 1.000001), "bins = 100 from lo = 1.0"),
        (lambda: LogBins(8), "subdivision_bits = 8: expected an integer in 0..7"),
        (lambda: LogBins(-1), "subdivision_bits = -1"),
        (lambda: LogBins(3, -128, 0), "min_exponent = -128: expected an integer in -127..127"),
        (lambda: LogBins(3, 0, 128), "max_exponent = 128"),
        (lambda: LogBins(3, 5, 4), "expected min_exponent <= max_exponent"),
        (lambda: bins_from_dict({"type": "cubic"}), "'cubic'"),
        (lambda: bins_from_dict({"bins": 4, "lo": 0.0, "hi": 1.0}), "expected a dict from"),
        (lambda: bins_from_dict({"type": "log", "width": 4}), "'width': 4"),
        (lambda: bins_from_dict({"type": "linear", "bins": 0, "lo": 0.0, "hi": 1.0}), "bins = 0"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
