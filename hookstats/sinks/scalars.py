"""Scalars: the numbers of each step, for any tracker that logs a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.sinks.by_rank import ByRank


class Scalars:
    """A sink that gives the numbers of each step, recorded or not, to a function: losses, learning
    rates, the norm of the gradients.

    Args:
        log: called as ``log(values, step)``, with the numbers by name, on another thread.
        rank: the only one of several ranks that logs.
    Raises:
        ValueError: rank is something else.
    """

    def __init__(self, log: Callable[[dict[str, float], int], Any], rank: int = 0) -> None:
        self._log = log
        self._writes = ByRank(rank).writes

    def __call__(self, record: StepRecord) -> None:
        """Records of tensors go nowhere."""

    def write_scalars(self, step: int, rank: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        if self._writes:
            self._log(dict(values), step)
