"""Loads the operator libraries: the operators, their fake kernels and fallbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hookstats.stats import reference

LIBRARIES = Path(__file__).parents[1]
"""The folder that the build puts the operator libraries into."""


def _load() -> tuple[Callable[..., None], Callable[..., None]]:
    # Not "_C*": the CUDA kernels are a library of their own.
    found = sorted(LIBRARIES.glob("_C.*so"))
    if not found:
        raise ImportError(
            f"hookstats: no operator library _C.*so in {LIBRARIES}: "
            "run `pip install .`, or `make build` in a checkout"
        )
    try:
        torch.ops.load_library(str(found[0]))  # type: ignore[no-untyped-call]
        operators = torch.ops.hookstats
        return operators.update_.default, operators.update_many_.default
    except (OSError, AttributeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ImportError(
            f"hookstats: {found[0].name} does not fit torch {torch.__version__} ({reason}): "
            "run `pip install .`, or `make build` in a checkout, to build it again"
        ) from None


_REBUILD_CUDA = (
    "where nvcc is, run `FORCE_CUDA=1 pip install .`, or, in a checkout, "
    "`FORCE_CUDA=1 python setup.py build_ext --inplace`"
)


def _load_cuda() -> str | None:
    """Load the CUDA kernels; returns why there are none, or None."""
    if torch.version.cuda is None:  # without torch's own CUDA libraries it could not be loaded
        return f"torch {torch.__version__} is built without CUDA"
    found = sorted(LIBRARIES.glob("_cuda.*so"))
    if not found:
        return f"not built; {_REBUILD_CUDA}"
    try:
        torch.ops.load_library(str(found[0]))  # type: ignore[no-untyped-call]
    except OSError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        why = f"{found[0].name} does not fit torch {torch.__version__} ({reason}); {_REBUILD_CUDA}"
        warnings.warn(
            f"hookstats: no CUDA kernels, the slow PyTorch fallback serves: {why}",
            RuntimeWarning,
            stacklevel=2,
        )
        return why
    return None


_operators = _load()
why_no_cuda = _load_cuda()
"""Why CUDA tensors have no kernels of ours; None where they have."""

update_ = _operators[0]
"""update_(x, channel_dim, moments, tallies, counts=None, bins=None, channel_counts=None,
channel_bins=None) -> None: folds the statistics of `x` into the state of its channels, in place.

x: any strides; a dtype of `reference.DTYPES`; detached by the caller, never changed.
channel_dim: the dimension of x that has the C channels, or None for C = 1.
moments, tallies: float64 and int64 [C, 5], the columns of `hookstats.state`; moments [C, 7] get the
    higher ones too.
counts, bins: int64 [slots] and `Bins.descriptor`, for one histogram of the whole tensor, or None.
channel_counts, channel_bins: int64 [C, slots] and the like, for one histogram a channel.
Bad arguments are a ValueError, from the C++ kernels a RuntimeError; `reference.check` says which.
"""

update_many_ = _operators[1]
"""update_many_(xs, channel_dim, moments, tallies, counts, bins, channel_counts, channel_bins,
scale=None) -> None: `update_` of many tensors on one device, each into a state of its own.

xs, moments, tallies: lists as long as each other; all moments have the same columns.
counts, channel_counts: the like; empty where `bins` or `channel_bins` is None.
scale: float32 [] on the device of xs: values are divided by it, in float32 (in float64 where they
    are float64 or integers of 32 bits and more), before they are counted; None divides nothing.
The bits are those of `update_` one by one. States that share memory are refused; what is refused
changes no state, and the error names the argument and its place in the list.
"""


class Taken(NamedTuple):
    """What `take_` returns."""

    moments: Tensor
    """float64 [5, rows], or [7, rows] with the higher ones."""
    tallies: Tensor
    """int64 [5, rows]."""
    offsets: Tensor
    """int64 [tensors + 1]: histogram i has these entries of the next two."""
    slots: Tensor
    """int32: ascending in each histogram."""
    counts: Tensor
    """int64: not zero."""
    channel_offsets: Tensor
    """int64 [channels + 1]: and these three are the like for the channels' histograms."""
    channel_slots: Tensor
    channel_counts: Tensor


_WORD_SLOTS = 64 * 16  # an int64 has 64 marks, each of 16 slots


def mark_columns(slots: int) -> int:
    """How many int64 say which of a histogram's slots were counted in, see csrc/core/marks.h."""
    return 1 + -(-slots // _WORD_SLOTS)


def take_(
    moments: list[Tensor],
    tallies: list[Tensor],
    counts: list[Tensor],
    marks: list[Tensor],
    folds: Tensor,
    channel_counts: list[Tensor],
) -> Taken:
    """Take the states out of their rows, which are left empty, without the GIL.

    moments, tallies: blocks [rows, 5] on the CPU, with as many rows in all; one or more. All blocks
        of moments are [rows, 7] where they have the higher ones.
    counts, channel_counts: blocks int64 [histograms, slots]; none where there are no such bins.
    marks: for each block of counts int64 [histograms, `mark_columns`]: how many tensors were
        counted by writers that mark, then the marks.
    folds: int64 [histograms]: how many tensors were folded into each of counts; -1: unknown. Where
        they are not all marked, or unknown, all its slots are looked at.
    """
    operator = torch.ops.hookstats.take_
    return Taken(*operator(moments, tallies, counts, marks, folds, channel_counts))


def cpu_entry(params_size: int) -> int:
    """The address of what the C++ hooks call; `params_size` has to be of the same build."""
    return cast(int, torch.ops.hookstats.cpu_entry(params_size))


def cuda_entry(params_size: int) -> int:
    """The same of the CUDA kernels; 0 where there are none."""
    if why_no_cuda is not None:
        return 0
    try:
        return cast(int, torch.ops.hookstats.cuda_entry(params_size))
    except RuntimeError as error:  # of another build than the C++ hooks
        reason = str(error).partition("\n")[0]
        warnings.warn(
            f"hookstats: CUDA tensors are left to the slower Python hooks: {reason}; "
            f"{_REBUILD_CUDA}",
            RuntimeWarning,
            stacklevel=2,
        )
        return 0


def ignore_captures() -> None:
    """Let this thread use CUDA while others capture graphs, which by default forbid it."""
    if why_no_cuda is None:
        torch.ops.hookstats.ignore_captures()


_warned: set[str] = set()


def _warn_of_fallback(device: str) -> None:
    if device not in _warned:
        _warned.add(device)
        warnings.warn(
            f"hookstats has no kernel for device type {device!r}: the slow PyTorch fallback "
            "serves it",
            RuntimeWarning,
            stacklevel=3,
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
    # Statistics have no gradient; without this, autograd hangs a warning on an x that requires
    # grad.
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"hookstats::{_name}", _fake, lib=_library)
