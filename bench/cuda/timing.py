"""Times of calls on a device, of inputs that are not in its cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from time import perf_counter

import torch

COLD_BYTES = 1 << 30
"""What passes through the cache between two looks at one input: many times its size."""

Run = Callable[[int], object]
"""Takes the number of an input."""


def inputs_for(nbytes: int) -> int:
    """How many inputs of that size take turns, so that each is cold again."""
    return max(2, ceil(COLD_BYTES / nbytes) + 1)


def take_turns(
    runs: Mapping[str, Run], inputs: int, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each call by the device's own events, of `rounds` rounds.

    In every round each of `runs` is called with an input of its own, the one that was not used for
    longest. What slows the device slows them all.
    """
    turn = 0
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(-2, rounds):  # the first two compile and allocate
        marks: dict[str, tuple[torch.Event, torch.Event] | float] = {}
        if device.type == "cuda":
            # The host gets ahead meanwhile: the device never waits for a launch.
            torch.cuda._sleep(2_000_000)
        for name, run in runs.items():
            number, turn = turn % inputs, turn + 1
            if device.type == "cuda":
                start, end = torch.cuda.Event(True), torch.cuda.Event(True)
                start.record()
                run(number)
                end.record()
                marks[name] = start, end
            else:
                began = perf_counter()
                run(number)
                marks[name] = perf_counter() - began
        if device.type == "cuda":
            torch.cuda.synchronize()
        for name, mark in marks.items():
            seconds = mark if isinstance(mark, float) else mark[0].elapsed_time(mark[1]) * 1e-3
            if round_ >= 0:
                times[name].append(seconds)
    return times


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
