"""Times of calls on a device, of inputs that are not in its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from math import ceil
from time import perf_counter

import torch

from bench.turns import Peer, Rounds, host, interleave

COLD_BYTES = 1 << 30
"""What passes through the cache between two looks at one input: many times its size."""

Run = Callable[[int], object]
"""Takes the number of an input."""


def inputs_for(nbytes: int) -> int:
    """How many inputs of that size take turns, so that each is cold again."""
    return max(2, ceil(COLD_BYTES / nbytes) + 1)


class _Cold:
    """A Peer that calls `run` with the input that was not used for longest."""

    def __init__(self, run: Run, numbers: Iterator[int]) -> None:
        self._run = run
        self._numbers = numbers

    def prepare(self) -> None:
        self._number = next(self._numbers)

    def run(self) -> None:
        self._run(self._number)

    def check(self) -> None:
        """What was found is checked by whoever made `run`."""


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


def take_turns(
    runs: Mapping[str, Run], inputs: int, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each call, of `rounds` rounds after two that compile and allocate."""
    numbers = cycle(range(inputs))
    peers = {name: _Cold(run, numbers) for name, run in runs.items()}
    clock = _by_events if device.type == "cuda" else host
    return interleave(peers, Rounds(0.0, rounds, rounds), clock=clock, warm_up=2)


def host_seconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Seconds that the host is busy with one of `calls` calls in a row, the least of ten tries."""
    least = float("inf")
    for _ in range(10):
        synchronize(device)
        began = perf_counter()
        for _ in range(calls):
            call()
        least = min(least, (perf_counter() - began) / calls)
    synchronize(device)
    return least


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
