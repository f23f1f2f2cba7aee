"""interleave(): times peers in turn, round by round, on the host or on a device.

The peers of a case take turns, A B C A B C, so that whatever slows the machine slows all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from types import MappingProxyType
from typing import Protocol

from bench.smoke import SMOKE


class Peer(Protocol):
    """One of the things that are compared."""

    def prepare(self) -> None:
        """Called before every `run`, not timed."""

    def run(self) -> float | None:
        """What is timed; its result is kept for `check`.

        Returns the seconds it took where only the peer can tell: in another process, or on another
        number of threads.
        """

    def check(self) -> None:
        """Assert that the last result is right."""


@dataclass(frozen=True)
class Rounds:
    """How long a peer takes part: until it took `seconds`, in at least `least` and `most` calls."""

    seconds: float = 0.6
    least: int = 3
    most: int = 40


Clock = Callable[[Sequence[Peer]], list[float]]
"""Prepares and runs each peer once, one after the other, and returns the seconds of each run."""


def host(peers: Sequence[Peer]) -> list[float]:
    """The Clock of what runs on the host."""
    seconds = []
    for peer in peers:
        peer.prepare()
        start = perf_counter()
        itself = peer.run()
        took = perf_counter() - start
        seconds.append(took if itself is None else itself)
    return seconds


def cpu(peers: Sequence[Peer]) -> list[float]:
    """The Clock of what runs on one thread, this one: its CPU time, so that other work on the
    machine counts little."""
    seconds = []
    for peer in peers:
        peer.prepare()
        start = thread_time()
        peer.run()
        seconds.append(thread_time() - start)
    return seconds


def interleave(
    peers: Mapping[str, Peer],
    rounds: Rounds = Rounds(),
    special: Mapping[str, Rounds] = MappingProxyType({}),
    clock: Clock = host,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Seconds of every timed run of each peer, after `warm_up` rounds that are not timed.

    `rounds` are for the peers that have none in `special`. A peer leaves once it had its rounds, so
    that a slow peer does not cost the others theirs.
    """
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(warm_up):
        clock(list(peers.values()))
    playing = list(peers)
    gc.collect()
    gc.disable()
    try:
        while playing:
            seconds = clock([peers[name] for name in playing])
            for name, took in zip(playing, seconds, strict=True):
                times[name].append(took)
            playing = [
                name for name in playing if not _done(times[name], special.get(name, rounds))
            ]
    finally:
        gc.enable()
    return times


def _done(seconds: Sequence[float], rounds: Rounds) -> bool:
    if SMOKE:
        rounds = replace(rounds, seconds=0.0)
    enough = len(seconds) >= rounds.most or sum(seconds) >= rounds.seconds
    return enough and len(seconds) >= rounds.least
