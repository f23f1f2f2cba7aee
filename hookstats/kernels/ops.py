"""The operators: loads their libraries, and registers fake kernels and the fallback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from hookstats.kernels.backends import BACKENDS, CPU, Backend
from hookstats.stats import reference
from hookstats.stats.messages import warn

LIBRARIES = Path(__file__).parents[1]
"""The folder into which the build puts the operator libraries."""


_REBUILD = {
    "cpu": "run `pip install .`, or `make clean build` in a checkout",
    "cuda": "where nvcc is, run `FORCE_CUDA=1 pip install .`, or, in a checkout, "
    "`FORCE_CUDA=1 python setup.py build_ext --inplace`",
}
"""By device type, how to build its kernels."""


def _load(backend: Backend) -> str | None:
    """Load a backend's kernels; returns why it has none, or None."""
    if backend.library is None:
        return "the PyTorch fallback serves"
    if (reason := backend.why_unusable()) is not None:
        return reason
    rebuild = _REBUILD[backend.type]
    found = sorted(LIBRARIES.glob(backend.library))
    if not found:
        return f"no operator library {backend.library} in {LIBRARIES}: {rebuild}"
    try:
        torch.ops.load_library(str(found[0]))  # type: ignore[no-untyped-call]
    except OSError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        why = f"{found[0].name} does not fit torch {torch.__version__} ({reason}): {rebuild}"
        if backend is not CPU:
            warn(
                f"hookstats: without {backend.type} kernels, the slow PyTorch fallback serves: "
                f"{why}"
            )
        return why
    return None


why_missing = {backend.type: _load(backend) for backend in BACKENDS.values() if backend.library}
"""By device type, why its kernels are not loaded; None where they are."""


def has_kernels(device: str) -> bool:
    """Whether tensors on a device of this type have kernels, which wait for nothing."""
    return why_missing.get(device, "") is None


def _operator(name: str) -> Callable[..., Any]:
    reason = why_missing[CPU.type]
    if reason is None:
        try:
            operator: Callable[..., Any] = getattr(torch.ops.hookstats, name).default
        except AttributeError:
            reason = f"{CPU.library} has no operator {name}: {_REBUILD[CPU.type]}"
        else:
            return operator
    raise ImportError(f"hookstats: {reason}")


update_: Callable[..., None] = _operator("update_")
"""update_(x, channel_dim, moments, tallies, counts=None, bins=None, channel_counts=None,
channel_bins=None, sampling=None, mask=None) -> None: accumulates the statistics of `x` into the
state of its channels, in place.

x: any strides; a dtype of `reference.DTYPES`. The caller detaches x, which is never changed.
channel_dim: the dimension of x that has the C channels, or None for C = 1.
moments, tallies, counts, bins, channel_counts, channel_bins, sampling: the fields of
    `stats.state.State`.
mask: bool or integers [batch, time] or [rows], on the device of x: where it is 0, a row of x is
    left out; x is [batch, time, ...] or [rows, ...] (`stats.mask.covered_dims`). None keeps all.
Bad arguments are a ValueError, from the C++ kernels a RuntimeError; `reference.check` lists them.
"""

update_many_: Callable[..., None] = _operator("update_many_")
"""update_many_(xs, channel_dim, moments, tallies, counts, bins, channel_counts, channel_bins,
scale=None, sampling=None) -> None: `update_` of many tensors on one device, each into a separate
state.

xs, moments, tallies: lists of one length; all moments have the same columns.
counts: one int64 tensor per entry of xs; an empty list if `bins` is None.
channel_counts: one int64 tensor per entry of xs; an empty list if `channel_bins` is None.
scale: float32 [] on the device of xs: values are divided by it before they are counted, in float64
    if they are float64 or integers of 32 or more bits, else in float32; None divides nothing.
The results have the bits of one call of `update_` per tensor. States that share memory are refused;
a call that is refused changes no state, and the error names the argument and its place in the list.
"""


_WORD_SLOTS = 64 * 16  # an int64 has 64 bits, each of 16 slots


def mark_columns(slots: int) -> int:
    """How many int64 mark the slots of a histogram that were counted in (csrc/core/occupancy.h)."""
    return 1 + -(-slots // _WORD_SLOTS)


drain_: Callable[..., tuple[Tensor, ...]] = _operator("drain_")
"""drain_(moments, tallies, counts, occupancy, accumulated, channel_counts, offsets) -> moments,
tallies, tensor_moments, tensor_tallies, offsets, slots, counts, channel_offsets, channel_slots,
channel_counts: moves the states out of their rows and leaves the rows empty; needs no GIL.

moments, tallies: one or more blocks [rows, 5] and [rows, 5] on the CPU, as many rows in all.
counts, channel_counts: blocks int64 [histograms, slots]; none where there are no such bins.
occupancy: for each block of counts int64 [histograms, `mark_columns`]: the number of tensors that
    marking writers counted, then the occupancy bitmap.
accumulated: int64 [histograms]: the number of tensors that were accumulated into each row of
    counts, -1 if unknown. All slots of a histogram are looked at unless all tensors are marked.
offsets: int64 [tensors + 1]: tensor t has the rows offsets[t]:offsets[t + 1] of all blocks, and
    those in one block.
Returns two tables by column, of channels and of tensors with their channels merged: moments
float64 [5, rows] and tallies int64 [5, rows], [5, tensors] and [5, tensors]; then the
histograms of tensors and those of channels as sparse rows: where the entries of each begin and the
last one's end, int64 [histograms + 1], and their slots, int32, which ascend in each one, and
counts, int64, never 0. An error, such as a full memory, leaves the rows as they were.
"""


def entries(params_size: int) -> dict[str, int]:
    """By device type, the address of the kernels that the C++ hooks call.

    params_size: of the hooks' UpdateParams, by which the libraries know that they fit the hooks.
    """
    return {name: at for name in BACKENDS if (at := _entry(name, params_size)) is not None}


def _entry(device: str, params_size: int) -> int | None:
    if not has_kernels(device):
        return None
    try:
        return cast(int, getattr(torch.ops.hookstats, f"{device}_entry")(params_size))
    except RuntimeError as error:  # the library is of another build than the C++ hooks
        reason = str(error).partition("\n")[0]
        warn(
            f"hookstats: the slower Python hooks serve {device} tensors: {reason}: "
            f"{_REBUILD[device]}"
        )
        return None


def close_streams(device: torch.device) -> None:
    """A step was closed on the device's current stream."""
    if device.type == "cuda" and why_missing["cuda"] is None:
        torch.ops.hookstats.cuda_close(device.index)


def wait_for_streams(device: torch.device) -> None:
    """Have the device's current stream wait for what hooks launched on other streams than the one
    that steps are closed on."""
    if device.type == "cuda" and why_missing["cuda"] is None:
        torch.ops.hookstats.cuda_wait(device.index)


def ignore_captures() -> None:
    """Let this thread use CUDA while others capture graphs, which by default forbid it."""
    if why_missing["cuda"] is None:
        torch.ops.hookstats.ignore_captures()


_warned: set[str] = set()


def _warn_of_fallback(device: str) -> None:
    if device not in _warned:
        _warned.add(device)
        warn(
            f"hookstats has no kernel for device type {device!r}: the slow PyTorch fallback serves"
        )


def _fallback(x: Tensor, *arguments: Any, **options: Any) -> None:
    reference.update_(x, *arguments, **options)
    _warn_of_fallback(x.device.type)


def _fallback_many(xs: list[Tensor], *arguments: Any, **options: Any) -> None:
    reference.update_many_(xs, *arguments, **options)
    if xs:
        _warn_of_fallback(xs[0].device.type)


def _fake(*args: object, **kwargs: object) -> None:
    """Nothing to infer: the operators return nothing and change no shape."""


_library = torch.library.Library("hookstats", "IMPL")  # type: ignore[no-untyped-call]
for _name, _kernel in (("update_", _fallback), ("update_many_", _fallback_many)):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    # Statistics have no gradient; without this, autograd warns where x requires grad.
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    _library.impl(_name, _fake, "Meta")  # type: ignore[no-untyped-call]
