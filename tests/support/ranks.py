"""Processes of one gloo group that run functions side by side, for the tests of sharding."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

RANKS = 2
"""How many there are by default."""
_SECONDS = 240.0  # after which a rank hangs, on however busy a machine


class Ranks:
    """The processes, started once; `close` ends them."""

    def __init__(self, rendezvous: Path, size: int = RANKS) -> None:
        """rendezvous: a file that is not there yet."""
        context = torch.multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(size)]
        self.alive = True
        self.size = size
        self._pipes = [here for here, _ in pairs]
        self._processes = [
            context.Process(target=_serve, args=(rank, size, rendezvous, there), daemon=True)
            for rank, (_, there) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()

    def __call__(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(rank, *args)` returns on each rank.

        Raises:
            AssertionError: it raised, with its traceback; or a rank hangs.
        """
        for pipe in self._pipes:
            pipe.send((function, args))
        answers: dict[int, Any] = {}
        failure = ""
        deadline = time.monotonic() + _SECONDS
        while len(answers) < len(self._pipes) and not failure:
            for rank, pipe in enumerate(self._pipes):
                if rank not in answers and pipe.poll(0.01):
                    went_well, answers[rank] = pipe.recv()
                    if not went_well:
                        failure = f"rank {rank}: {answers[rank]}"
            if time.monotonic() > deadline:
                failure = f"of {len(self._pipes)} ranks, only {sorted(answers)} came to an end"
        if failure:  # the other rank may wait for this one for ever
            self.close()
            raise AssertionError(failure)
        return [answers[rank] for rank in sorted(answers)]

    def close(self) -> None:
        """End the processes."""
        self.alive = False
        for process in self._processes:
            process.kill()
            process.join()


class Pool:
    """Ranks for one test after the other; new ones where a test ended the old ones, or wants
    another number of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Ranks] = []

    def ranks(self, size: int) -> Ranks:
        """So many ranks, which are alive."""
        last = self._started[-1] if self._started else None
        if last is not None and last.alive and last.size == size:
            return last
        self.close()
        rendezvous = self._folder / f"rendezvous-{len(self._started)}"
        self._started.append(Ranks(rendezvous, size))
        return self._started[-1]

    def close(self) -> None:
        """End the processes."""
        for ranks in self._started:
            ranks.close()


def _serve(rank: int, size: int, rendezvous: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size
    )
    warnings.filterwarnings("error", "hookstats")
    while True:
        function, args = pipe.recv()
        torch.manual_seed(0)
        try:
            pipe.send((True, function(rank, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
