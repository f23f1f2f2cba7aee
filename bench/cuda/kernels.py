"""python -m bench.cuda.kernels: every kernel on small tensors, to be run under compute-sanitizer.

Integers are compared with the CPU's. Memory checkers are slow, and so this is little work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bench.cuda.cases import What
from bench.cuda.peers import State
from hookstats import LinearBins, LogBins
from hookstats.kernels import ops

WHATS = (
    What("moments"),
    What("few", LinearBins(17, -2.0, 2.0), LogBins(0)),
    What("many", LinearBins(256, -2.0, 2.0), LogBins(3)),
    What("many of the tensor", None, LogBins(3)),
)
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
    folds = 0
    for dtype in DTYPES:
        for what in WHATS:
            cases = list(tensors(dtype))
            for x, dim in cases:
                channels = 1 if dim is None else x.shape[dim]
                there = _moved(x)
                given = State(channels, what, there.device)
                expected = State(channels, what, x.device)
                ops.update_(there, dim, *given.arguments)
                ops.update_(x, dim, *expected.arguments)
                _compare(given, expected)
                folds += 1
            rows = [x for x, dim in cases if dim == 0 or x.dim() > 1]
            several = [State(len(x), what, torch.device("cuda")) for x in rows]
            alone = [State(len(x), what, torch.device("cpu")) for x in rows]
            for xs, states in (([_moved(x) for x in rows], several), (rows, alone)):
                lists = list(zip(*(s.arguments for s in states), strict=True))
                moments, tallies, counts, bins, channel_counts, channel_bins = map(list, lists)
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
            for given, expected in zip(several, alone, strict=True):
                _compare(given, expected)
                folds += 1
    torch.cuda.synchronize()
    print(f"bench.cuda.kernels: {folds} folds agree with the CPU")


def _moved(x: Tensor) -> Tensor:
    """A copy on the GPU, with the strides and offset that `x` has in its memory."""
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return memory.cuda().as_strided(x.shape, x.stride(), x.storage_offset())


def _compare(given: State, expected: State) -> None:
    for name in ("tallies", "counts", "channel_counts"):
        mine, other = getattr(given, name), getattr(expected, name)
        assert mine is None or torch.equal(mine.cpu(), other), name


if __name__ == "__main__":
    main()
