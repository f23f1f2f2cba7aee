"""ByRank: which of several ranks write to a sink, and where each of them writes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hookstats.records.record import StepRecord
from hookstats.runs.world import current_rank

Ranks = int | Literal["all", "merged"]
"""The argument `ranks` of sinks: all of them, one, or "merged", for records of the whole model."""


class ByRank:
    """What `ranks` means on this rank.

    Raises:
        ValueError: it is something else.
    """

    def __init__(self, ranks: Ranks) -> None:
        is_rank = isinstance(ranks, int) and not isinstance(ranks, bool) and ranks >= 0
        if not (is_rank or ranks in ("all", "merged")):
            raise ValueError(f"ranks = {ranks!r}: expected 'all', 'merged', or a rank")
        self._ranks = ranks
        self._rank = current_rank()

    @property
    def writes(self) -> bool:
        """Whether this rank writes anything."""
        return self._ranks == "all" or self._rank == (0 if self._ranks == "merged" else self._ranks)

    def takes(self, record: StepRecord) -> bool:
        """Whether this rank writes the record."""
        return self.writes and (self._ranks != "merged" or record.rank is None)

    def of_directory(self, path: Path) -> Path:
        """Where this rank writes what rank 0 writes into the directory `path`."""
        return path / f"rank{self._rank}" if self._is_one_of_many else path

    def of_file(self, path: Path) -> Path:
        """Where this rank writes what rank 0 writes into the file `path`."""
        named = f"{path.stem}.rank{self._rank}{path.suffix}"
        return path.with_name(named) if self._is_one_of_many else path

    @property
    def _is_one_of_many(self) -> bool:
        return self._ranks == "all" and self._rank > 0
