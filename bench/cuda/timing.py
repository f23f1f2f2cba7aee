"""Times of calls on a device, of inputs that are not in its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch

from bench.turns import Clock, Peer, host

COLD_BYTES = 1 << 30
"""What passes through the cache between two looks at one input: many times its size."""


def inputs_for(nbytes: int) -> int:
    """How many inputs of that size take turns, so that each is cold again."""
    return max(2, ceil(COLD_BYTES / nbytes) + 1)


def _by_events(peers: Sequence[Peer]) -> list[float]:
    """The Clock of what runs on a GPU: the device's own events tell the time."""
    # The host gets ahead meanwhile: the device never waits for a launch.
    torch.cuda._sleep(2_000_000)
    marks = []
    for peer in peers:
        peer.prepare()
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        peer.run()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in marks]


def clock(device: torch.device) -> Clock:
    """The Clock of what runs there."""
    return _by_events if device.type == "cuda" else host


class Calls:
    """A Peer for the host's clock: `calls` calls in a row, none of which is waited for."""

    def __init__(
        self,
        call: Callable[[], object],
        calls: int,
        device: torch.device,
        check: Callable[[int], None] = lambda made: None,
    ) -> None:
        """check: asserts what the calls did, given how many were made."""
        self._call = call
        self._calls = calls
        self._device = device
        self._check = check
        self._made = 0

    def prepare(self) -> None:
        synchronize(self._device)

    def run(self) -> None:
        for _ in range(self._calls):
            self._call()
        self._made += self._calls

    def check(self) -> None:
        self._check(self._made)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
