"""Staging: copies a device's memory to the host without a call that waits for the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hookstats.kernels.backends import backend_of
from hookstats.kernels.ops import ignore_captures, wait_for_streams

_POLL_SECONDS = 2e-4  # short enough to go unnoticed, long enough to leave the core idle


class Staging:
    """A separate stream on one device other than the CPU.

    The thread sleeps until the device is done. It does not block in a call of the device's library,
    which `torch.cuda.set_sync_debug_mode` would report, and does not disturb a graph that another
    thread captures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)
        self._lock = threading.Lock()  # a torch.Stream knows the stream before for one thread alone

    @contextmanager
    def work(self, behind: torch.Event | None = None) -> Iterator[None]:
        """Submit the block's work on the stream, after the event `behind` and after what hooks
        launched on other streams than the event's; done when this ends. Waits while another thread
        is in such a block."""
        ignore_captures()
        with self._lock:
            while self._is_captured():
                self._stream = torch.Stream(self._device)
            with self._stream:
                if behind is not None:
                    self._stream.wait_event(behind)
                wait_for_streams(self._device)
                yield
                done = event(self._device)
            while not done.query():
                time.sleep(_POLL_SECONDS)

    def _is_captured(self) -> bool:
        """Whether another thread captures the stream: torch has 32, and gives them out in turn."""
        with self._stream:
            return backend_of(self._device).is_capturing()

    def copy(self, x: Tensor) -> Tensor:
        """A copy of `x` on the host, in torch's pinned memory; valid once `work` has ended."""
        return x.to("cpu", non_blocking=True)


def event(device: torch.device, *, timed: bool = False) -> torch.Event:
    """An event behind all work on the device's current stream so far.

    timed: whether it is for `elapsed_time`.
    """
    event = torch.Event(device, enable_timing=timed)
    event.record(torch.accelerator.current_stream(device))
    return event
