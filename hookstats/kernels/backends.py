"""The device types that hookstats treats differently, one row each: the one place to add a device.

A device with kernels also has a folder in csrc, and csrc/ops/update_<device>.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Backend(NamedTuple):
    """What hookstats does with tensors on one type of device."""

    type: str
    """The device's type in torch; "" for every type without a row."""
    library: str | None = None
    """The file of the kernels, as a glob; None where the PyTorch fallback serves."""
    why_unusable: Callable[[], str | None] = lambda: None
    """Why this torch cannot load the library; None where it can."""
    states_on_host: bool = False
    """Whether states are on the CPU, to which the fallback then brings the values."""
    occupancy: bool = False
    """Whether the kernels mark the slots of a histogram that they counted in."""
    is_capturing: Callable[[], bool] = lambda: False
    """Whether the work that is asked for now becomes part of a graph; must not start the device."""


def _why_no_cuda() -> str | None:
    # ROCm's devices are of type "cuda", too.
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA or ROCm"
    return None


CPU = Backend("cpu", library="_C.*so", states_on_host=True, occupancy=True)
CUDA = Backend(
    "cuda",
    library="_cuda.*so",
    why_unusable=_why_no_cuda,
    is_capturing=lambda: torch.cuda.is_current_stream_capturing(),
)
BACKENDS = {
    backend.type: backend
    for backend in (
        CPU,
        CUDA,
        Backend("mps", states_on_host=True),  # MPS has no float64
    )
}
_OTHER = Backend("")


def backend_of(device: torch.device) -> Backend:
    """The row of a device."""
    return BACKENDS.get(device.type, _OTHER)


def home(device: torch.device) -> torch.device:
    """The device that has the states of tensors on `device`."""
    return torch.device("cpu") if backend_of(device).states_on_host else device
