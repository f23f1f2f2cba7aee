"""The operators on a GPU: the CPU's integers, the same bits in every run, streams and graphs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
import torch
from support.devices import moved, no_synchronisation
from support.oracle import DTYPES, INTEGERS, State, accumulate, check
from support.sampled import sampling
from torch import Tensor

from hookstats.kernels import ops
from hookstats.stats import state
from hookstats.stats.bins import Bins, LinearBins, LogBins

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        ops.why_missing["cuda"] is not None, reason=f"no kernels: {ops.why_missing['cuda']}"
    ),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

LINEAR = LinearBins(64, -3.0, 3.0)
LOG = LogBins(3)
LATE = 20_000_000  # clock cycles: about 10 ms, in which a missing wait shows


def empty(
    x: Tensor, dim: int | None, bins: Bins | None = LOG, channel_bins: Bins | None = LINEAR
) -> tuple[Tensor | None, ...]:
    """What update_ takes after x and channel_dim: an empty state on the device of `x`."""
    channels = 1 if dim is None else x.shape[dim]
    return (
        state.identity_moments(channels, x.device),
        state.identity_tallies(channels, x.device),
        None if bins is None else torch.zeros(bins.slots, dtype=torch.int64, device=x.device),
        None if bins is None else bins.descriptor(x.device),
        None
        if channel_bins is None
        else torch.zeros(channels, channel_bins.slots, dtype=torch.int64, device=x.device),
        None if channel_bins is None else channel_bins.descriptor(x.device),
    )


def on_cpu(arguments: tuple[Tensor | None, ...]) -> State:
    """The state among these arguments, for the oracle."""
    moments, tallies, counts, _, channel_counts, _ = arguments
    assert moments is not None
    assert tallies is not None
    return State(
        moments.cpu(),
        tallies.cpu(),
        None if counts is None else counts.cpu(),
        None if channel_counts is None else channel_counts.cpu(),
    )


def layouts(elements: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, int | None]]:
    """Tensors on the CPU of each regime, with every special value in them."""
    x = torch.randn(elements)
    x[:: elements // 7] = math.nan
    x[1 :: elements // 5] = math.inf
    x[2 :: elements // 3] = -math.inf
    x[3::11] = 0.0
    if dtype in INTEGERS or dtype == torch.bool:
        x = (x.nan_to_num(0.0, 0.0, 0.0) * 30).trunc()
        x = x if dtype.is_signed else x.abs()
    x = x.to(dtype)
    yield x, None
    for channels in (2, 64, 1000):
        rows = x[: elements // channels // 4 * channels * 4].view(4, -1, channels)
        yield rows, 2
        yield rows.transpose(1, 2), 1  # the same memory
        yield rows.contiguous().view(4, channels, -1), 1
        yield rows.contiguous().view(channels, -1), 0
    yield x[: elements // 2 * 2].view(2, -1)[:, ::3], 1
    yield x[5:], None  # not aligned


def assert_same_integers(got: State, expected: State) -> None:
    assert torch.equal(got.tallies, expected.tallies)
    for mine, other in zip(got[2:], expected[2:], strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or other is None or torch.equal(mine, other)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bins", [(LOG, LINEAR), (LINEAR, LOG), (None, None)], ids=str)
def test_integers_are_those_of_the_cpu(
    dtype: torch.dtype, bins: tuple[Bins | None, Bins | None]
) -> None:
    for x, dim in layouts(300_000, dtype):
        arguments = empty(there := moved(x), dim, *bins)
        ops.update_(there, dim, *arguments)
        expected = accumulate(ops.update_, x, dim, *bins)
        got = on_cpu(arguments)
        assert_same_integers(got, expected)
        assert torch.equal(got.moments[:, 2:4], expected.moments[:, 2:4])  # min and max
        torch.testing.assert_close(got.moments, expected.moments, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_samples_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    for x, dim in layouts(300_000, dtype):
        for how in (sampling(7, 4, 3), sampling(1 << 40, 0, 1)):
            arguments = empty(there := moved(x), dim)
            ops.update_(there, dim, *arguments, moved(how))
            expected = accumulate(ops.update_, x, dim, LOG, LINEAR, how=how)
            assert_same_integers(on_cpu(arguments), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int16], ids=str)
def test_wide_data_has_the_moments_of_the_cpu(dtype: torch.dtype) -> None:
    """They are summed in float64, as the CPU sums doubles: what differs is the order."""
    x = (torch.randn(1 << 18, dtype=torch.float64) * 1000 + 300).to(dtype)
    for shape, dim in (((-1,), None), ((-1, 256), 1), ((256, -1), 0), ((8, 64, -1), 1)):
        given = x.view(shape)
        arguments = empty(there := moved(given), dim)
        ops.update_(there, dim, *arguments)
        expected = accumulate(ops.update_, given.double(), dim, LOG, LINEAR)
        torch.testing.assert_close(
            on_cpu(arguments).moments, expected.moments, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_hundred_runs_have_the_same_bits(dtype: torch.dtype) -> None:
    for x, dim in layouts(1 << 20, dtype):
        there = moved(x)
        first: list[Tensor] = []
        for _ in range(100):
            arguments = empty(there, dim)
            ops.update_(there, dim, *arguments)
            got = [
                t.view(torch.int64) for t in arguments if t is not None and t.dtype.itemsize == 8
            ]
            first = first or got
            for mine, other in zip(got, first, strict=True):
                assert torch.equal(mine, other)


def test_large_tensors_are_held_to_the_oracle() -> None:
    """Past what one block, or one wave of blocks, has."""
    x = torch.randn(3, 257, 129, 65)
    for dim in (None, 0, 1, 2, 3):
        arguments = empty(there := moved(x), dim)
        ops.update_(there, dim, *arguments)
        check(on_cpu(arguments), x, dim, LOG, LINEAR)


@pytest.mark.parametrize("channels", [None, 64])
def test_more_elements_than_int32_counts(channels: int | None) -> None:
    values = torch.zeros(2**31 + 64, dtype=torch.int8, device="cuda")
    values[-1] = 7
    x, dim = (values, None) if channels is None else (values.view(-1, channels), 1)
    arguments = empty(x, dim, LOG, None)
    ops.update_(x, dim, *arguments)
    got = on_cpu(arguments)
    assert got.tallies[:, state.COUNT].sum() == values.numel()
    assert got.tallies[:, state.ZERO].sum() == values.numel() - 1
    assert got.moments[-1, state.MAX] == 7
    assert got.counts is not None
    assert got.counts.sum() == values.numel()


def test_many_tensors_have_the_bits_of_one_by_one() -> None:
    xs = [torch.randn(1 + i % 97, 1 + i * 7 % 301, device="cuda") for i in range(2000)]
    xs[::50] = [torch.randn(64, 4096, device="cuda") for _ in xs[::50]]
    alone = [empty(x, 0) for x in xs]
    together = [empty(x, 0) for x in xs]
    for x, arguments in zip(xs, alone, strict=True):
        ops.update_(x, 0, *arguments)
    moments, tallies, counts, bins, channel_counts, channel_bins = map(
        list, zip(*together, strict=True)
    )
    ops.update_many_(xs, 0, moments, tallies, counts, bins[0], channel_counts, channel_bins[0])
    for i, (one, other) in enumerate(zip(alone, together, strict=True)):
        got, expected = on_cpu(other), on_cpu(one)
        assert_same_integers(got, expected)
        # A tensor of many is cut by the same rule as one alone.
        assert torch.equal(got.moments, expected.moments), i


def test_a_scale_is_read_on_the_device() -> None:
    xs = [torch.randn(40, 30, device="cuda") for _ in range(5)]
    scale = torch.full((), 2.0**16, device="cuda")
    plain, scaled = [empty(x, 0) for x in xs], [empty(x, 0) for x in xs]
    for given, lists, divisor in ((xs, plain, None), ([x * 2.0**16 for x in xs], scaled, scale)):
        moments, tallies, counts, bins, cc, cb = map(list, zip(*lists, strict=True))
        ops.update_many_(given, 0, moments, tallies, counts, bins[0], cc, cb[0], divisor)
    for one, other in zip(plain, scaled, strict=True):
        assert_same_integers(on_cpu(other), on_cpu(one))
        assert torch.equal(on_cpu(other).moments, on_cpu(one).moments)


def test_no_tensors_are_nothing_to_do() -> None:
    bins = LOG.descriptor("cuda")
    ops.update_many_([], 0, [], [], [], bins, [], None, torch.ones((), device="cuda"))
    for shape in ((0, 3), (3, 0)):
        x = torch.empty(shape, device="cuda")
        arguments = empty(x, 1)
        ops.update_(x, 1, *arguments)
        check(on_cpu(arguments), x.cpu(), 1, LOG, LINEAR)


def test_bad_arguments_are_refused_by_name() -> None:
    x = torch.randn(4, 3, device="cuda")
    good = empty(x, 1)
    for place, wrong, message in (
        (0, state.identity_moments(3), "moments"),
        (1, state.identity_tallies(2, "cuda"), "tallies"),
        (2, torch.zeros(LOG.slots, dtype=torch.int64), "counts"),
        (3, LINEAR.descriptor("cuda"), "counts"),
        (4, None, "channel_bins"),
        (5, torch.zeros(4, dtype=torch.int32, device="cuda"), "channel_bins"),
    ):
        given = [*good[:place], wrong, *good[place + 1 :]]
        with pytest.raises(RuntimeError, match=message):
            ops.update_(x, 1, *given)
    with pytest.raises(RuntimeError, match="channel_dim"):
        ops.update_(x, 2, *good)
    check(on_cpu(good), x[:0].cpu(), 1, LOG, LINEAR)


def test_a_captured_update_is_replayed() -> None:
    """Also several of them, on any stream, beside others that are not captured."""
    x = torch.randn(512, 300, device="cuda")
    captured, beside = empty(x, 1), empty(x, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            ops.update_(x, 1, *captured)
        ops.update_many_([x], 1, *([t] for t in captured[:2]), [], None, [], None)
    check(on_cpu(captured), x[:0].cpu(), 1, LOG, LINEAR)  # nothing ran yet
    values = [torch.randn(512, 300) for _ in range(4)]
    stream = torch.cuda.Stream()
    for value in values:
        x.copy_(value)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.current_stream().wait_stream(stream)
        ops.update_(x, 1, *beside)
    whole = torch.cat(values)
    check(on_cpu(beside), whole, 1, LOG, LINEAR)
    thrice = torch.cat([whole] * 3)
    got = on_cpu(captured)
    assert torch.equal(got.counts, accumulate(ops.update_, thrice, 1, LOG).counts)
    assert got.tallies[:, state.COUNT].tolist() == [4 * len(whole)] * 300


def test_graphs_replayed_side_by_side_do_not_meet() -> None:
    """Each has a workspace of its own."""
    xs = [torch.randn(2048, 512, device="cuda") for _ in range(4)]
    states = [empty(x, 1) for x in xs]
    graphs, streams = [], [torch.cuda.Stream() for _ in xs]
    for x, arguments in zip(xs, states, strict=True):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            ops.update_(x, 1, *arguments)
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
    for x, arguments in zip(xs, states, strict=True):
        check(on_cpu(arguments), torch.cat([x.cpu()] * 20), 1, LOG, LINEAR)


def test_streams_side_by_side_do_not_meet() -> None:
    xs = [torch.randn(4096, 300, device="cuda") for _ in range(4)]
    states = [empty(x, 1) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        for x, arguments, stream in zip(xs, states, streams, strict=True):
            with torch.cuda.stream(stream):
                ops.update_(x, 1, *arguments)
    torch.cuda.synchronize()
    for x, arguments in zip(xs, states, strict=True):
        check(on_cpu(arguments), torch.cat([x.cpu()] * 20), 1, LOG, LINEAR)


def test_threads_on_one_stream_do_not_meet() -> None:
    """Of sizes that make the stream's workspace grow."""
    sizes = (3, 300, 3000, 8192)  # the last has over 2 MB of partial results
    xs = [torch.randn(4096, size, device="cuda") for size in sizes]
    states = [empty(x, 1, LOG, None) for x in xs]

    def work(i: int) -> None:
        for _ in range(20):
            ops.update_(xs[i], 1, *states[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, arguments in zip(xs, states, strict=True):
        got, once = on_cpu(arguments), accumulate(ops.update_, x.cpu(), 1, LOG, None)
        assert torch.equal(got.tallies, 20 * once.tallies)
        assert got.counts is not None
        assert once.counts is not None
        assert torch.equal(got.counts, 20 * once.counts)


def test_it_is_behind_what_its_stream_has_to_do() -> None:
    stream = torch.cuda.Stream()
    x = torch.full((1000, 64), math.nan, device="cuda")
    arguments = empty(x, 1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LATE)
        x.fill_(2.0)
        ops.update_(x, 1, *arguments)
        x.fill_(math.nan)
    torch.cuda.current_stream().wait_stream(stream)
    check(on_cpu(arguments), torch.full((1000, 64), 2.0), 1, LOG, LINEAR)


def test_nothing_waits_for_the_device_and_nothing_is_allocated() -> None:
    xs = [torch.randn(512, size, device="cuda") for size in (64, 1000, 4096)]
    states = [empty(x, 1) for x in xs]
    lists = [[s[0] for s in states], [s[1] for s in states]]

    def update() -> None:
        for x, arguments in zip(xs, states, strict=True):
            ops.update_(x, 1, *arguments)
        ops.update_many_(xs, 1, *lists, [], None, [], None)

    update()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with no_synchronisation():
        torch.cuda._sleep(LATE)
        done = torch.cuda.Event()
        done.record()
        update()
        assert not done.query()  # the host came back before the device began
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@needs_two
def test_another_device_than_the_current_one() -> None:
    x = torch.randn(100, 64, device="cuda:1")
    arguments = empty(x, 1)
    with torch.cuda.device(0):
        ops.update_(x, 1, *arguments)
        ops.update_many_([x], 1, [arguments[0]], [arguments[1]], [], None, [], None)
        assert torch.cuda.current_device() == 0
    assert on_cpu(arguments).tallies[:, state.COUNT].tolist() == [200] * 64
