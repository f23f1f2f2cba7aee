"""Times of calls on a device, of inputs that are not in its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from time import perf_counter

import torch

from bench.turns import Clock, Peer, host

COLD_BYTES = 1 << 30
"""What passes through the cache between two looks at one input: many times its size."""
MOST_CYCLES = 4_000_000_000
"""Of a sleep of the device: about two seconds."""


def inputs_for(nbytes: int) -> int:
    """How many inputs of that size take turns, so that each is cold again."""
    return max(2, ceil(COLD_BYTES / nbytes) + 1)


class Events:
    """The Clock of what runs on a GPU: the device's own events tell the time.

    The host gets ahead while the device sleeps, so that the device waits for no launch. Where the
    sleep turns out to be too short for all that the host has to do, the round is made again behind
    a longer one.
    """

    def __init__(self) -> None:
        self._cycles = 2_000_000

    def __call__(self, peers: Sequence[Peer]) -> list[float]:
        while True:
            asleep = torch.cuda.Event(True), torch.cuda.Event(True)
            asleep[0].record()
            torch.cuda._sleep(self._cycles)
            asleep[1].record()
            began = perf_counter()
            marks = [self._run(peer) for peer in peers]
            took = perf_counter() - began
            torch.cuda.synchronize()
            if took < 0.9e-3 * asleep[0].elapsed_time(asleep[1]):
                return [start.elapsed_time(end) * 1e-3 for start, end in marks]
            if self._cycles > MOST_CYCLES:
                raise RuntimeError(
                    f"the host takes {took:.1f} s to ask for one round; expected less than the "
                    "device can be kept asleep"
                )
            self._cycles *= 2

    @staticmethod
    def _run(peer: Peer) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        peer.prepare()
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        peer.run()
        end.record()
        return start, end


def clock(device: torch.device) -> Clock:
    """The Clock of what runs there."""
    return Events() if device.type == "cuda" else host


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
