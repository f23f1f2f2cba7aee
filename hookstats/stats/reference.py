"""update_ and update_many_ in plain PyTorch operations: the fallback on devices without a kernel.

It is correct rather than fast: float64 throughout, two passes over every piece, and sums by a fixed
tree, so that the bits do not depend on the device or its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hookstats.stats import state
from hookstats.stats.arguments import check_integer
from hookstats.stats.mask import check_fits, kept
from hookstats.stats.sample import chosen
from hookstats.stats.state import State

DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    }
)
"""The dtypes that have statistics; float64 holds every value of all but 64-bit integers."""

SUPPORTED = "a strided tensor of " + ", ".join(
    sorted(str(dtype).removeprefix("torch.") for dtype in DTYPES)
)
"""The tensors that `unsupported` accepts, for error messages."""

_WIDENED = dict.fromkeys(
    (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64), torch.float64
)
"""The dtype in which values are divided by a scale, if not float32 (see csrc/core/dtype.h)."""

_MERGES: dict[str, Callable[..., Tensor]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "sum": torch.add,
}

_PIECE = 1 << 22  # elements brought to float64 at a time
_FLOAT32 = torch.finfo(torch.float32)
_FLOAT32_BIAS = 127
_FLOAT32_MANTISSA_BITS = 23


def unsupported(x: Tensor) -> str | None:
    """Why update_ refuses `x`, such as "dtype torch.complex64"; None if it accepts `x`."""
    if x.is_nested:
        return "a nested tensor"
    if x.layout != torch.strided:
        return f"layout {x.layout}"
    if x.dtype not in DTYPES:
        return f"dtype {x.dtype}"
    return None


def channel_count(x: Tensor, channel_dim: int | None) -> int:
    """The number of channels of `x`, 1 if `channel_dim` is None.

    Raises:
        ValueError: x has no such dimension.
    """
    if channel_dim is None:
        return 1
    try:
        return x.shape[check_integer("channel_dim", channel_dim, -x.dim(), x.dim() - 1)]
    except ValueError:
        raise ValueError(
            f"channel_dim = {channel_dim!r}: expected None or a dimension of x, "
            f"which has shape {tuple(x.shape)}"
        ) from None


def check(x: Tensor, channel_dim: int | None, into: State, mask: Tensor | None = None) -> None:
    """Raise a ValueError if update_ cannot take these arguments."""
    if reason := unsupported(x):
        raise ValueError(f"x has {reason}: expected {SUPPORTED}")
    channels = channel_count(x, channel_dim)
    _check_state("moments", into.moments, (channels, len(state.MOMENTS)), torch.float64, x.device)
    _check_state("tallies", into.tallies, (channels, len(state.TALLIES)), torch.int64, x.device)
    _check_histogram("", (), into.counts, into.bins, x.device)
    _check_histogram("channel_", (channels,), into.channel_counts, into.channel_bins, x.device)
    if into.sampling is not None:
        columns = 4 if tuple(into.sampling.shape) == (4,) else 3
        _check_state("sampling", into.sampling, (columns,), torch.int64, x.device)
    if mask is not None:
        check_fits(mask, x, channel_dim)


def update_(
    x: Tensor,
    channel_dim: int | None,
    moments: Tensor,
    tallies: Tensor,
    counts: Tensor | None = None,
    bins: Tensor | None = None,
    channel_counts: Tensor | None = None,
    channel_bins: Tensor | None = None,
    sampling: Tensor | None = None,
    mask: Tensor | None = None,
) -> None:
    """Accumulate the statistics of `x` into the state of its channels, in place.

    The arguments are those of the operator `hookstats::update_`. If the device of `x` has no
    float64, the state may be on the CPU. The rows that a mask keeps are copied.

    Raises:
        ValueError: arguments that `check` refuses.
    """
    into = State(moments, tallies, counts, bins, channel_counts, channel_bins, sampling)
    check(x, channel_dim, into, mask)
    _accumulate(x, channel_dim, into, None, mask)


def update_many_(
    xs: Sequence[Tensor],
    channel_dim: int | None,
    moments: Sequence[Tensor],
    tallies: Sequence[Tensor],
    counts: Sequence[Tensor],
    bins: Tensor | None,
    channel_counts: Sequence[Tensor],
    channel_bins: Tensor | None,
    scale: Tensor | None = None,
    sampling: Tensor | None = None,
) -> None:
    """`update_` of each of `xs`, divided by `scale`, into the i-th state of the lists.

    The arguments are those of the operator `hookstats::update_many_`; kernels check the lists.

    Raises:
        ValueError: arguments that `check` refuses; then no state is changed.
    """
    none = [None] * len(xs)
    states = [
        State(m, t, c, bins, cc, channel_bins, sampling)
        for m, t, c, cc in zip(
            moments,
            tallies,
            none if bins is None else counts,
            none if channel_bins is None else channel_counts,
            strict=True,
        )
    ]
    for x, into in zip(xs, states, strict=True):
        check(x, channel_dim, into)
    for x, into in zip(xs, states, strict=True):
        _accumulate(x, channel_dim, into, scale)


def merge_(moments: Tensor, tallies: Tensor, other_moments: Tensor, other_tallies: Tensor) -> None:
    """Merge the other state of the same C channels into `moments` and `tallies`, in place.

    moments: float64 [C, 5]; tallies: int64 [C, 5]; all on one device, which is not waited for. The
    formulas are those of `stats.merge`, for two states.
    """
    n, more = tallies[:, state.COUNT].double(), other_tallies[:, state.COUNT].double()
    share = more / (n + more).clamp(min=1)
    apart = other_moments[:, state.MEAN] - moments[:, state.MEAN]
    delta = torch.where((n > 0) & (more > 0), apart, 0.0)
    moments[:, state.M2] += other_moments[:, state.M2] + delta * delta * (n * share)
    moments[:, state.MEAN] = torch.where(
        n > 0, moments[:, state.MEAN] + delta * share, other_moments[:, state.MEAN]
    )
    for i, column in enumerate(state.MOMENT_COLUMNS):
        if merged := _MERGES.get(column.merge):
            moments[:, i] = merged(moments[:, i], other_moments[:, i])
    tallies += other_tallies


def _accumulate(
    x: Tensor,
    channel_dim: int | None,
    into: State,
    scale: Tensor | None,
    mask: Tensor | None = None,
) -> None:
    """`update_` with arguments that were checked."""
    moments, tallies, counts, bins, channel_counts, channel_bins, sampling = into
    if sampling is not None and len(sampling) == 4 and not sampling[3]:
        return
    dims = 0 if mask is None else check_fits(mask, x, channel_dim)

    def by_channel(of_x: Tensor) -> Tensor:
        along = channel_dim
        if mask is not None:
            along = along if along is None else along % of_x.dim() - (dims - 1)
            of_x = kept(of_x, mask, dims)
        return of_x.unsqueeze(0) if along is None else of_x.movedim(along, 0)

    masks = _masks(x, channel_dim, sampling, dims)
    rows = by_channel(x.detach().resolve_neg())
    for piece, *of_piece in zip(*map(_pieces, (rows, *map(by_channel, masks))), strict=True):
        if scale is not None:
            piece = piece.to(_WIDENED.get(x.dtype, torch.float32)) / scale
        values = piece.to(moments.device).to(torch.float64).reshape(len(moments), -1).contiguous()
        merge_(moments, tallies, *_reduce(values))
        counted, counted_by_channel = [_kept(values, mask) for mask in of_piece] or [values] * 2
        if counts is not None and bins is not None:
            _count_(counts.unsqueeze(0), counted.reshape(1, -1), bins)
        if channel_counts is not None and channel_bins is not None:
            _count_(channel_counts, counted_by_channel, channel_bins)


def _masks(
    x: Tensor, channel_dim: int | None, sampling: Tensor | None, masked: int
) -> list[Tensor]:
    """What the tensor's and the channels' histograms count of `x`; none: all."""
    if sampling is None:
        return []
    step, *every = sampling[:3].tolist()
    return [chosen(x, k, step, channel_dim, masked) for k in every]


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    """The values with NaN, which no histogram counts, where they are not chosen."""
    return values.where(mask.to(values.device).reshape(values.shape), torch.nan).contiguous()


def _pieces(rows: Tensor) -> Iterator[Tensor]:
    """Non-empty views that together cover `rows` [C, ...]; they are small unless C is large."""
    if rows.numel() <= _PIECE or rows.numel() == rows.shape[0]:
        if rows.numel() > 0:
            yield rows
        return
    sizes = rows.shape[1:]
    for half in rows.tensor_split(2, dim=1 + sizes.index(max(sizes))):
        yield from _pieces(half)


def _reduce(values: Tensor) -> tuple[Tensor, Tensor]:
    """The moments [C, 5] and tallies [C, 5] of `values`, float64 [C, n], n >= 1."""
    finite = values.isfinite()
    count = finite.sum(1)
    clean = torch.where(finite, values, 0.0)
    # Divided first: the sum of huge values may overflow where their mean does not.
    share = 1.0 / count.clamp(min=1).to(torch.float64)
    mean = _sum(clean * share[:, None])
    mean = mean + _sum(torch.where(finite, values - mean[:, None], 0.0) * share[:, None])
    deviations = torch.where(finite, values - mean[:, None], 0.0)
    squares = deviations.square()
    by_merge = {
        "mean": mean,
        "central": _sum(squares),
        "min": torch.where(finite, values, torch.inf).amin(1) + 0.0,  # + 0.0 makes -0 a +0
        "max": torch.where(finite, values, -torch.inf).amax(1) + 0.0,
    }
    moments = [_sum(c.of(clean)) if c.of else by_merge[c.merge] for c in state.MOMENT_COLUMNS]
    tallies = [c.of(values).sum(1) for c in state.COLUMNS if c.of and c.name in state.TALLIES]
    return torch.stack(moments, dim=1), torch.stack(tallies, dim=1)


def _sum(values: Tensor) -> Tensor:
    """Row sums of [C, n] by halving; torch.sum adds in an order that depends on its threads."""
    while (n := values.shape[1]) > 1:
        if n % 2:
            values = torch.nn.functional.pad(values, (0, 1))
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    return values[:, 0]


def _count_(counts: Tensor, values: Tensor, bins: Tensor) -> None:
    """Count the finite `values`, float64 [C, n], into the slots of `counts`, int64 [C, slots]."""
    channels, slots = counts.shape
    find = _linear_slots if bins.dtype == torch.float32 else _log_slots
    finite = values.isfinite()
    slot = find(values.where(finite, 0.0), bins)
    row = torch.arange(channels, device=values.device)[:, None]
    found = torch.bincount((row * slots + slot)[finite], minlength=channels * slots)
    counts += found.view(channels, slots)


def _linear_slots(values: Tensor, edges: Tensor) -> Tensor:
    edges = edges.to(values.device).to(torch.float64)
    slots = torch.searchsorted(edges, values, right=True)
    return torch.where(values == edges[-1], len(edges) - 1, slots)


def _log_slots(values: Tensor, descriptor: Tensor) -> Tensor:
    subdivision_bits, base, top = _log_range(descriptor)
    magnitude = values.abs()
    nearest = magnitude.to(torch.float32)
    bits = nearest.view(torch.int32).to(torch.int64)
    bits -= (nearest.to(torch.float64) > magnitude).to(torch.int64)  # round toward zero
    raw = bits >> (_FLOAT32_MANTISSA_BITS - subdivision_bits)
    small = int(base > 0)
    per_sign = top - base + small
    nth = (raw - base + small).clamp(min=0)  # below base: the one bin of the small
    nth = torch.where((raw >= top) | (magnitude > _FLOAT32.max), per_sign, nth)
    away = torch.where(values < 0, -1 - nth, 1 + nth)
    return 1 + per_sign + torch.where(values == 0, 0, away)


def _log_range(descriptor: Tensor) -> tuple[int, int, int]:
    """Subdivision bits k of a log descriptor, and its range base..top of bits >> (23 - k)."""
    subdivision_bits, min_exponent, max_exponent = descriptor.tolist()
    base = (min_exponent + _FLOAT32_BIAS) << subdivision_bits
    top = (max_exponent + _FLOAT32_BIAS + 1) << subdivision_bits
    return subdivision_bits, base, top


def _check_state(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}: "
            f"expected {shape} and {dtype}"
        )
    if tensor.device not in (device, torch.device("cpu")):
        raise ValueError(f"{name} is on {tensor.device}: expected {device}, the device of x")


def _check_histogram(
    prefix: str,
    rows: tuple[int, ...],
    counts: Tensor | None,
    bins: Tensor | None,
    device: torch.device,
) -> None:
    counts_name, bins_name = f"{prefix}counts", f"{prefix}bins"
    if counts is None and bins is None:
        return
    if counts is None or bins is None:
        given, missing = (bins_name, counts_name) if counts is None else (counts_name, bins_name)
        raise ValueError(f"{missing} = None although {given} is given: expected both or neither")
    if bins.dtype == torch.float32 and bins.dim() == 1 and len(bins) >= 2:
        slots = len(bins) + 1
    elif bins.dtype == torch.int32 and bins.shape == (3,) and bins.device.type == "cpu":
        _, base, top = _log_range(bins)
        slots = 2 * (top - base + (base > 0)) + 3
    else:
        raise ValueError(
            f"{bins_name} has shape {tuple(bins.shape)} and dtype {bins.dtype} on {bins.device}: "
            "expected the descriptor of LinearBins or LogBins"
        )
    _check_state(counts_name, counts, (*rows, slots), torch.int64, device)
