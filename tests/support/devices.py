"""Tests on GPUs: their marks, a model, and operators run there for tests of tensors on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookstats.kernels import ops

on_gpu = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:hookstats has no kernel for device type 'cuda'"),
]
"""The marks of a test that needs a GPU, and means something also where no kernel is built."""

needs_kernel = pytest.mark.skipif(
    ops.why_missing["cuda"] is not None,
    reason="no CUDA kernels, and the fallback allocates and synchronises: "
    f"{ops.why_missing['cuda']}",
)

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

LATE = 20_000_000
"""Clock cycles: about 10 ms, in which a missing wait shows."""


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Whatever waits for the device raises RuntimeError here, in all threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def network_on(device: str = "cuda") -> nn.Sequential:
    """Takes values of (N, 64); the same parameters every time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 8))
    return model.to(device)


def moved(x: Tensor, device: str = "cuda") -> Tensor:
    """A copy of `x` on `device`, with the strides and offset that it has in its memory."""
    with torch.no_grad():
        plain = x.detach().resolve_neg()
        elements = plain.untyped_storage().nbytes() // plain.element_size()
        memory = plain.as_strided((elements,), (1,), 0).to(device)
        copy = memory.as_strided(plain.shape, plain.stride(), plain.storage_offset())
    return copy.requires_grad_(x.requires_grad)


def on_cuda(update: Callable[..., None]) -> Callable[..., None]:
    """`update_` or `update_many_`, of copies on the GPU whose state is copied back."""

    def run(*arguments: Any) -> None:
        # 5 and 7 are bins, in both; the descriptor of log bins is on the CPU whatever the device.
        there = [
            a if i in (5, 7) and isinstance(a, Tensor) and a.dtype == torch.int32 else _map(a)
            for i, a in enumerate(arguments)
        ]
        update(*there)
        with torch.no_grad():
            for mine, other in zip(arguments[2:7], there[2:7], strict=True):
                for a, b in zip(_list(mine), _list(other), strict=True):
                    if a.dtype in (torch.float64, torch.int64):  # not bins
                        a.copy_(b)

    return run


def _list(argument: Any) -> list[Tensor]:
    tensors = argument if isinstance(argument, (list, tuple)) else [argument]
    return [tensor for tensor in tensors if isinstance(tensor, Tensor)]


def _map(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [moved(tensor) for tensor in argument]
    return moved(argument) if isinstance(argument, Tensor) else argument
