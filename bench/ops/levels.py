"""Level, Elsewhere: update_ with another instruction set, which takes another process."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import pytest
import torch
from peers import Read, Update
from sample import Sample
from whats import WHATS

from bench.accuracy import HOOKSTATS, check
from bench.measure import Absent

CAPABILITIES = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "default"}
"""What ATEN_CPU_CAPABILITY asks for, by what it gives; the best first."""


class Level:
    """A process with torch and hookstats on another instruction set."""

    def __init__(self, capability: str) -> None:
        self.capability = capability
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATEN_CPU_CAPABILITY", CAPABILITIES[capability])
            self._process = context.Process(
                target=_serve, args=(theirs, torch.get_num_threads()), daemon=True
            )
            self._process.start()
        if (found := self.ask("capability")) != capability:
            raise RuntimeError(f"asked for {capability}, the process uses {found}")

    def ask(self, method: str, *args: object) -> Any:
        """Call a method of the `_Server` there.

        Raises:
            RuntimeError: it did; with its traceback.
        """
        self._pipe.send((method, args))
        result, error = self._pipe.recv()
        if error:
            raise RuntimeError(f"in the process with {self.capability}:\n{error}")
        return result

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


class _Server:
    """What a Level's process can be asked."""

    def capability(self) -> str:
        return str(torch.ops.hookstats.cpu_capability())

    def make(self, sample: tuple[Any, ...], what: str) -> None:
        self._peer = Update(Sample(*sample), WHATS[what])

    def prepare(self) -> None:
        self._peer.prepare()

    def run(self) -> float:
        start = perf_counter()
        self._peer.run()
        return perf_counter() - start

    def found(self) -> dict[str, Any]:
        return {name: values.numpy() for name, values in self._peer.found().items()}


def _serve(pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    server = _Server()
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            os._exit(0)  # nothing to tidy up
        try:
            pipe.send((getattr(server, method)(*args), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))


class Elsewhere(Read):
    """`Update` in a Level's process, timed there."""

    def __init__(self, sample: Sample, arguments: tuple[Any, ...], what: str, level: Level) -> None:
        super().__init__(sample)
        self._level = level
        level.ask("make", arguments, what)

    def prepare(self) -> None:
        self._level.ask("prepare")

    def run(self) -> float:
        return float(self._level.ask("run"))

    def check(self) -> None:
        found = self._level.ask("found")
        tensors = {name: torch.from_numpy(values) for name, values in found.items()}
        check(tensors, self.sample.expected, HOOKSTATS)


class Levels:
    """The processes, each started when it is first asked for."""

    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}

    def __getitem__(self, capability: str) -> Level:
        """The process of a lesser instruction set than this one's.

        Raises:
            Absent: this process uses none better.
        """
        mine = torch.ops.hookstats.cpu_capability()
        order = list(CAPABILITIES)
        if order.index(capability) <= order.index(mine):
            raise Absent(f"{capability} is not less than what this process uses, {mine}")
        if capability not in self._levels:
            self._levels[capability] = Level(capability)
        return self._levels[capability]

    def close(self) -> None:
        for level in self._levels.values():
            level.close()
