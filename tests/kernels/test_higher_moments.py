"""The third and fourth central moments, a state of 7 columns: held to fp64 definitions, kernels and
reference, one tensor and many, in any split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.devices import on_cuda, on_gpu
from support.oracle import DTYPES, FLOATS, State, check_channel, fold, rows
from support.values import LINEAR, LOG, MEANS, STDS, layouts, normal, of_dtype
from torch import Tensor

from hookstats.arena.arena import Arena
from hookstats.arena.taken import Sizes, Taken
from hookstats.kernels import native, ops
from hookstats.stats import reference, state
from hookstats.stats.bins import Bins

UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(on_cuda(ops.update_), id="cuda", marks=on_gpu),
    pytest.param(reference.update_, id="reference"),
]
UPDATES_OF_MANY = [
    pytest.param(ops.update_many_, id="op"),
    pytest.param(on_cuda(ops.update_many_), id="cuda", marks=on_gpu),
    pytest.param(reference.update_many_, id="reference"),
]
SIZES = (0, 1, 2, 31, 33, 997)
MANY = 100_000  # elements: several tasks of a kernel, many of its fp32 sums
# As many in every dtype, around every mean and with every spread, which `make check` runs whole.
GRID_OF_MANY = [
    pytest.param(
        dtype,
        mean,
        std,
        marks=[] if dtype in (torch.float32, torch.bfloat16) and i == j else pytest.mark.check,
        id=f"{dtype}-{mean:g}-{std:g}",
    )
    for dtype in FLOATS
    for i, mean in enumerate(MEANS)
    for j, std in enumerate(STDS)
]
COLUMNS = len(state.MOMENTS) + len(state.HIGHER)

Update = Callable[..., None]

pytestmark = pytest.mark.usefixtures("one_thread")


def empty(x: Tensor, channel_dim: int | None, *bins: Bins | None) -> State:
    """The state of nothing, with the higher moments."""
    plain = fold(lambda *_: None, x, channel_dim, *bins)
    return plain._replace(moments=state.identity_moments(len(plain.moments), higher=True))


def fold_higher(update: Update, x: Tensor, channel_dim: int | None, *bins: Bins | None) -> State:
    return fold(update, x, channel_dim, *bins, into=empty(x, channel_dim, *bins))


def shape_of(count: float, mean: Any, m2: Any, m3: Any, m4: Any) -> tuple[float, float]:
    """Skewness and excess kurtosis, as scipy.stats.skew and kurtosis define them, biased.

    Both are NaN where the variance is no more than the rounding of the mean.
    """
    if count == 0 or m2 / count <= (np.finfo(np.float64).eps * mean) ** 2:
        return math.nan, math.nan
    variance = np.longdouble(m2) / count
    return float(m3 / count / variance**1.5), float(m4 / count / variance**2 - 3)


def expected_shape(values: NDArray[np.float64]) -> tuple[float, float]:
    """The same of the finite `values`, in two passes."""
    finite = values[np.isfinite(values)].astype(np.longdouble)
    if finite.size == 0 or finite.min() == finite.max():
        return math.nan, math.nan
    deviations = finite - finite.mean()
    m2, m3, m4 = (float((deviations**power).sum()) for power in (2, 3, 4))
    return shape_of(finite.size, float(finite.mean()), m2, m3, m4)


def check_higher(got: State, x: Tensor, channel_dim: int | None) -> None:
    """Assert that `got` is the state of `x`, to 1e-4 of skewness and kurtosis."""
    channels = rows(x, channel_dim)
    moments, tallies = got.moments.numpy(), got.tallies.numpy()
    assert moments.shape == (len(channels), COLUMNS)
    for mine, counted, values in zip(moments, tallies, channels, strict=True):
        where = f"{tuple(x.shape)} {x.stride()} {x.dtype}"
        check_channel(mine[: len(state.MOMENTS)], counted, values, where)
        shape = shape_of(counted[state.COUNT], *mine[[state.MEAN, state.M2, state.M3, state.M4]])
        for value, expected in zip(shape, expected_shape(values), strict=True):
            close = abs(value - expected) <= 1e-4 * max(1.0, abs(expected))
            both_nan = math.isnan(value) and math.isnan(expected)
            assert close or both_nan, (where, value, expected)


@pytest.mark.filterwarnings("ignore:Precision loss occurred:RuntimeWarning")
def test_the_definitions_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    samples = [normal(n, seed=n).numpy() * std for n in (1, 2, 33, 997) for std in (1e-20, 1.0)]
    samples += [np.full(7, 0.1), np.array([1.0, 1.0 + 2.0**-52]), np.exp(normal(500).numpy())]
    for values in samples:
        expected = stats.skew(values), stats.kurtosis(values)
        np.testing.assert_allclose(expected_shape(values), expected, rtol=1e-9, atol=1e-9)


def check_accuracy(update: Update, values: Tensor) -> None:
    for x, channel_dim in layouts(values):
        check_higher(fold_higher(update, x, channel_dim), x, channel_dim)


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_accuracy(update: Update, dtype: torch.dtype, mean: float, std: float) -> None:
    for n in SIZES:
        check_accuracy(update, (normal(2, n, seed=n) * std + mean).to(dtype))


@pytest.mark.parametrize(("dtype", "mean", "std"), GRID_OF_MANY)
@pytest.mark.parametrize("update", UPDATES)
def test_accuracy_of_many(update: Update, dtype: torch.dtype, mean: float, std: float) -> None:
    check_accuracy(update, (normal(2, MANY, seed=1) * std + mean).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_every_dtype_in_every_layout(update: Update, dtype: torch.dtype) -> None:
    for n in (1, 33, 1000):
        for x, channel_dim in layouts(of_dtype(dtype, 5, n)):
            got = fold_higher(update, x, channel_dim, LINEAR, LOG)
            check_higher(got, x, channel_dim)
            plain = fold(update, x, channel_dim, LINEAR, LOG)
            assert torch.equal(got.tallies, plain.tallies)
            assert torch.equal(got.counts, plain.counts)
            assert torch.equal(got.channel_counts, plain.channel_counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_every_stride(update: Update, dtype: torch.dtype) -> None:
    base = (normal(6, 5, 7, 4) * 30).to(dtype)
    for x in (
        base[1::2, :, 1::3],
        base.permute(3, 1, 0, 2),
        base[:, :1].expand(6, 3, 7, 4),
        base.reshape(-1).as_strided((8, 9, 3), (2, 3, 1)),
        base.reshape(-1)[1:],
        base.reshape(30, 28).diagonal(3),
        base[:, :0],
    ):
        for channel_dim in (None, *range(x.dim())):
            check_higher(fold_higher(update, x, channel_dim), x, channel_dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_odd_distributions(update: Update, dtype: torch.dtype) -> None:
    """Skewed, heavy-tailed, bimodal, sparse; sizes that change; NaN and infinities among them."""
    values = normal(4, 3000)
    hit = values.abs() > 2.5
    for data in (
        values.exp(),
        values * (3 * normal(4, 3000, seed=1)).exp(),
        values.sign() + 1e-3 * values,
        torch.where(hit, values, 0.0),
        values * torch.logspace(-30, 0, 3000, dtype=torch.float64),
        torch.where(hit, math.nan, torch.where(values > 2.4, math.inf, values)),
    ):
        for size in (1e-30, 1e-9, 1.0, 1e12):
            check_accuracy(update, (data * size).to(dtype))


@pytest.mark.parametrize("update", UPDATES)
def test_float64_too_huge_for_a_fourth_power_says_so(update: Update) -> None:
    x = torch.tensor([1e100, -1e100, 1e100, 1e100], dtype=torch.float64)
    moments = fold_higher(update, x, None).moments[0].tolist()
    assert moments[state.M2] == pytest.approx(3e200)
    assert moments[state.M3] == pytest.approx(-3e300)
    assert moments[state.M4] == math.inf


@pytest.mark.parametrize("update", UPDATES)
def test_updates_accumulate(update: Update) -> None:
    x = normal(500, 3).exp()
    got = empty(x, 1)
    for part in (x[:20], x[:0], x[20:21], x[21:]):
        fold(update, part, 1, into=got)
    check_higher(got, x, 1)


@pytest.mark.parametrize("update", UPDATES_OF_MANY)
def test_many_divided_by_a_scale(update: Update) -> None:
    scale = torch.tensor(3.0)
    xs = [normal(*shape).float().exp() for shape in ((1,), (7,), (33, 31), (9, 5, 7), (0, 3))]
    xs += [xs[2].bfloat16(), xs[2].double(), (xs[2] * 9).int(), xs[2].to(torch.float8_e5m2)]
    states = [empty(x, None) for x in xs]
    moments, tallies = [s.moments for s in states], [s.tallies for s in states]
    update(xs, None, moments, tallies, [], None, [], None, scale)
    for x, got in zip(xs, states, strict=True):
        wide = x.dtype in (torch.float64, torch.int32)
        check_higher(got, x.to(torch.float64 if wide else torch.float32) / scale, None)


@pytest.mark.parametrize("update", UPDATES_OF_MANY)
def test_states_of_one_call_have_the_same_columns(update: Update) -> None:
    xs = [torch.randn(3), torch.randn(4)]
    moments = [state.identity_moments(1), state.identity_moments(1, higher=True)]
    tallies = [state.identity_tallies(1) for _ in xs]
    with pytest.raises((ValueError, RuntimeError), match=r"moments\[1\] has 7 columns.*expected 5"):
        update(xs, None, moments, tallies, [], None, [], None)
    assert not any(t.any() for t in tallies)


@pytest.mark.parametrize("columns", [4, 6, 8])
@pytest.mark.parametrize("update", UPDATES)
def test_other_columns_are_refused(update: Update, columns: int) -> None:
    moments = torch.zeros(1, columns, dtype=torch.float64)
    with pytest.raises((ValueError, RuntimeError), match="moments"):
        update(torch.randn(3), None, moments, state.identity_tallies(1))


@pytest.mark.parametrize("columns", [len(state.MOMENTS), COLUMNS])
def test_take(columns: int) -> None:
    blocks = [normal(n, columns, seed=n) for n in (3, 0, 33)]
    tallies = [torch.ones(len(block), 5, dtype=torch.int64) for block in blocks]
    expected = torch.cat(blocks).numpy()
    taken = Taken(Sizes(columns, rows=36, tensors=2, hist=0, channel_hist=0))
    none = torch.zeros(0, dtype=torch.int64)
    ops.take_(blocks, tallies, [], [], none, [], torch.tensor([0, 3, 36]), *taken.into)
    np.testing.assert_array_equal(taken.moments, expected)
    for block in blocks:
        identity = state.identity_moments(len(block), higher=columns == COLUMNS)
        assert torch.equal(block, identity)


def test_blocks_taken_together_have_the_same_columns() -> None:
    blocks = [state.identity_moments(3, higher=True), state.identity_moments(3)]
    tallies = [state.identity_tallies(3)] * 2
    none, offsets = torch.zeros(0, dtype=torch.int64), torch.tensor([0, 6])
    taken = Taken(Sizes(COLUMNS, rows=6, tensors=1, hist=0, channel_hist=0))
    with pytest.raises(RuntimeError, match=r"moments has a block .* \[rows, 7\]"):
        ops.take_(blocks, tallies, [], [], none, [], offsets, *taken.into)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 9))
def test_states_merge_in_any_split(sizes: list[int], seed: int) -> None:
    parts = [normal(2, n, seed=seed + i).exp() + 5 for i, n in enumerate(sizes)]
    states = [fold_higher(reference.update_, part, 0) for part in parts]
    moments = torch.stack([s.moments for s in states])
    tallies = torch.stack([s.tallies for s in states])
    combined = State(*state.combine(moments, tallies), None, None)
    check_higher(combined, torch.cat(parts, 1), 0)
    one_by_one = empty(parts[0], 0)
    for part in states:
        state.merge_(one_by_one.moments, one_by_one.tallies, part.moments, part.tallies)
    torch.testing.assert_close(one_by_one.moments, combined.moments, rtol=1e-9, atol=1e-9)


def test_merging_nothing_changes_nothing() -> None:
    """To the last bit, also where a fourth power was too much for float64."""
    x = torch.tensor([[0.1, 0.2, 0.7], [1e100, -1e100, 1e90]], dtype=torch.float64)
    moments, tallies = fold_higher(reference.update_, x, 0)[:2]
    nothing = state.identity_moments(2, higher=True), state.identity_tallies(2)
    for pair in (((moments, tallies), nothing), (nothing, (moments, tallies))):
        merged = state.combine(*(torch.stack(each) for each in zip(*pair, strict=True)))
        assert torch.equal(merged[0], moments)
        assert torch.equal(merged[1], tallies)


class Owner:
    """The Python half of a site whose tensors are all taken by the C++ half."""

    def disable(self, error: BaseException) -> None:
        raise error


@pytest.mark.skipif(native.hooks is None, reason=f"no C++ hooks: {native.why_not}")
def test_cpp_hooks_fill_states_of_either_width() -> None:
    arena, owner = Arena(None, None), Owner()
    arena.record(True)
    site = arena.native_site(owner)
    assert site is not None
    assert native.hooks is not None
    x = normal(50, 3).float().exp()
    for higher in (True, False):
        moments = [state.identity_moments(3, higher=higher) for _ in range(2)]
        tallies = [state.identity_tallies(3) for _ in range(2)]
        first, second = (
            state.State(m, t, None, None, None, None) for m, t in zip(moments, tallies, strict=True)
        )
        calls = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        site.bind(x, 1, (first, second), calls, None)
        awaits = torch.empty_like(x).requires_grad_() * 1
        native.hooks.await_gradient(site, awaits)
        awaits.backward(x)
        expected = fold_higher(ops.update_, x, 1).moments
        assert [int(count) for count in calls] == [1, 0]
        assert torch.equal(moments[0], expected if higher else fold(ops.update_, x, 1).moments)


@pytest.mark.parametrize("bins", [(None, None), (LOG, LINEAR)])
def test_opcheck(bins: tuple[Bins | None, Bins | None]) -> None:
    x = normal(4, 3, 5).float()
    arguments: list[Any] = []
    into = empty(x, 1, *bins)
    fold(lambda *given: arguments.extend(given), x, 1, *bins, into=into)
    torch.library.opcheck(ops.update_, tuple(arguments))
    torch.library.opcheck(
        ops.update_many_,
        ([x], 1, [into.moments], [into.tallies], [], None, [], None, torch.tensor(2.0)),
    )
