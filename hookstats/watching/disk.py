"""Disk: a run's writer that may fail, as the flush thread uses it.

A disk that takes nothing and a memory that is full may pass: the writer tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookstats.records.record import StepRecord
from hookstats.runs.writer import RunWriter


class Disk:
    """Writes while the writer does not fail; there may be no writer from the start."""

    def __init__(
        self,
        writer: RunWriter | None,
        attempt: Callable[[str, str, Callable[[], object]], bool],
        fail: Callable[[str, str], None],
    ) -> None:
        """attempt: runs an action, and warns of its error, with the outcome; whether it succeeded.

        fail: warns that something failed, and why.
        """
        self._writer = writer
        self._attempt = attempt
        self._fail = fail
        self._tries_again = False  # and has said so

    @property
    def is_there(self) -> bool:
        """Whether anything is written."""
        return self._writer is not None

    def due_in(self) -> float | None:
        """The seconds until something is to be written; None for never."""
        return None if self._writer is None else self._writer.due_in()

    def do(self, action: Callable[[RunWriter], None]) -> None:
        """Have the writer do something; disable the writer if that fails for good."""
        writer = self._writer
        if writer is None:
            return
        what = f"writing to out = {str(writer.path)!r}"

        def act() -> None:
            try:
                action(writer)
            except FileExistsError:  # another process writes the run: to try again cannot help
                raise
            except (OSError, MemoryError) as error:
                self._fail(what, f"{type(error).__name__}: {error}; the writer tries again")
                self._tries_again = True

        again = " again" if self._tries_again else ""  # of each failure the first is warned of
        if not self._attempt(f"{what}{again}", "nothing more is written", act):
            self._writer = None

    def write(self, step: int, make: Callable[[], StepRecord]) -> None:
        """Write the record of a step that `make` returns; note the step as lost where there is no
        memory to take it."""

        def act(writer: RunWriter) -> None:
            try:
                writer.write(make())
            except MemoryError:
                writer.skip(step, "error")  # unless it was taken
                raise

        self.do(act)
        if self._writer is not None and self._writer.lost:
            what = f"keeping the steps for out = {str(self._writer.path)!r}"
            self._fail(what, f"too many wait for the disk; steps from {step} on are lost")

    def close(self, coverage: Mapping[str, Any] | None) -> None:
        """Close the writer; again where the memory was full, with that in the coverage."""
        writer = self._writer
        if writer is None:
            return
        what = f"closing out = {str(writer.path)!r}"
        lost = "steps that are not on the disk are lost"

        def act() -> None:
            try:
                writer.close(coverage)
            except MemoryError as error:
                why = f"{type(error).__name__}: {error}; {lost}"
                self._fail(what, why)
                told = dict(coverage or {})
                writer.close({**told, "failures": {**told.get("failures", {}), what: why}})

        self._attempt(what, lost, act)
        self._attempt(what, "no other watch may write the run", writer.unlock)
        self._writer = None
