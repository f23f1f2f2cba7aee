"""Staging: what a device holds, brought to the host without a call that waits for the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hookstats.kernels.ops import ignore_captures

_POLL_SECONDS = 2e-4  # often enough not to be noticed, seldom enough not to keep a core busy


class Staging:
    """A stream of its own on one device other than the CPU, for one thread at a time.

    That thread sleeps until the device is done: it neither blocks in a call of the device's, which
    `torch.cuda.set_sync_debug_mode` would see, nor disturbs a graph that another thread captures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.Stream(device)

    @contextmanager
    def work(self, behind: torch.Event | None = None) -> Iterator[None]:
        """Ask the device on the stream, after the event `behind`; what is asked is done after."""
        ignore_captures()
        with self._stream:
            if behind is not None:
                self._stream.wait_event(behind)
            yield
            done = event(self._device)
        while not done.query():
            time.sleep(_POLL_SECONDS)

    def copy(self, x: Tensor) -> Tensor:
        """A copy of `x` on the host, in pinned memory of torch's, right once `work` has ended."""
        return x.to("cpu", non_blocking=True)


def event(device: torch.device) -> torch.Event:
    """An event behind all that was asked of the device's current stream so far."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
