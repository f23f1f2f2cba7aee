"""python -m bench.cuda.kernels: every kernel on small tensors, to be run under compute-sanitizer.

Integers are compared with the CPU's. Memory checkers are slow, and so this is little work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from bench.states import State, What
from hookstats import LinearBins, LogBins
from hookstats.kernels import ops

WHATS = (
    What(),
    What(LinearBins(17, -2.0, 2.0), LogBins(0)),
    What(LinearBins(256, -2.0, 2.0), LogBins(3)),
    What(None, LogBins(3)),
)
SAMPLINGS = (None, torch.tensor([3, 2, 5]))
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.float8_e4m3fn,
)


def tensors(dtype: torch.dtype) -> Iterator[tuple[Tensor, int | None]]:
    """Awkward sizes of every layout, on the CPU."""
    x = (torch.randn(40_000, generator=torch.Generator().manual_seed(0)) * 2).nan_to_num()
    if dtype.is_floating_point:
        x[::97], x[5::89], x[7::83] = math.nan, math.inf, 0.0
    x = x.to(dtype)
    yield x[:39_989], None
    yield x[1:1000], None
    yield x[:1], None
    yield x.view(4, 100, 100), 2
    yield x[:39_900].view(-1, 3), 1
    yield x.view(4, 100, 10, 10), 1
    yield x.view(100, 400), 0
    yield x.view(4, 100, 100)[:, ::2, 1:], 2
    yield x[:100].view(1, 100, 1).expand(5, 100, 7), 1
    yield x[:0].view(0, 3), 1


def main() -> None:
    """Run them."""
    accumulated = 0
    for dtype in DTYPES:
        for what in WHATS:
            cases = list(tensors(dtype))
            for (x, dim), how, masked in product(cases, SAMPLINGS, (False, True)):
                if masked and dim == 0:
                    continue
                mask = _padded(x) if masked else None
                there, channels = _moved(x), 1 if dim is None else x.shape[dim]
                given, expected = State(channels, what, there.device), State(channels, what)
                ops.update_(there, dim, *given.arguments, _on_gpu(how), _on_gpu(mask))
                ops.update_(x, dim, *expected.arguments, how, mask)
                _compare(given, expected)
                accumulated += 1
            rows = [x for x, dim in cases if dim == 0 or x.dim() > 1]
            several = _by_one_call([_moved(x) for x in rows], what)
            for given, expected in zip(several, _by_one_call(rows, what), strict=True):
                _compare(given, expected)
                accumulated += 1
    torch.cuda.synchronize()
    print(f"bench.cuda.kernels: {accumulated} updates agree with the CPU")


def _by_one_call(xs: list[Tensor], what: What) -> list[State]:
    """The states of all, their first dimension the channels, that update_many_ fills."""
    states = [State(len(x), what, x.device) for x in xs]
    columns = zip(*(each.arguments for each in states), strict=True)
    moments, tallies, counts, bins, channel_counts, channel_bins = map(list, columns)
    ops.update_many_(
        xs,
        0,
        moments,
        tallies,
        [t for t in counts if t is not None],
        bins[0],
        [t for t in channel_counts if t is not None],
        channel_bins[0],
    )
    return states


def _padded(x: Tensor) -> Tensor:
    """A mask of the first dimension that leaves out rows at both ends and in between."""
    row = torch.arange(len(x))
    return (row % 7 != 3) & (row > 0) & (row < len(x) - 1)


def _on_gpu(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.cuda()


def _moved(x: Tensor) -> Tensor:
    """A copy on the GPU, with the strides and offset that `x` has in its memory."""
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return memory.cuda().as_strided(x.shape, x.stride(), x.storage_offset())


def _compare(given: State, expected: State) -> None:
    names = ("tallies", "counts", "channel_counts")
    for name, at in zip(names, (1, 2, 4), strict=True):
        mine, other = given.arguments[at], expected.arguments[at]
        assert mine is None or torch.equal(mine.cpu(), other), name


if __name__ == "__main__":
    main()
