"""PartWriter: one rank's parts, as they are filled, written and thinned.

A part has a file in each of some directories of the run, all with one name: of records in those of
tensors and of channels, of scalars in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hookstats.runs.decode import numbers
from hookstats.runs.encode import PartBuilder, Rows, encode_part
from hookstats.runs.files import RunDirectory, remove_temporaries
from hookstats.runs.format import PartName, list_parts, schema_of
from hookstats.runs.part_file import Footer, open_part, part_about
from hookstats.runs.thinning import MOST_LEVEL, Written, reductions

_PARTS_WAITING = 2
"""The number of parts whose bytes may wait in memory while the disk takes none."""

Encode = Callable[[Sequence[Any]], Any]


class Pace(NamedTuple):
    """When a part, a row group or a further attempt is due."""

    seconds_per_part: float
    """After so many seconds from its first step on, a part is written."""
    bytes_per_part: float
    """With so many bytes in memory, a part is written."""
    bytes_per_group: int
    """With so many bytes in memory, a row group of a part ends."""
    seconds_per_retry: float
    """The least time between two attempts to write a part that the disk did not take."""


class PartWriter:
    """Fills parts step by step, and puts each on the disk once it is old or large enough.

    Args:
        run: the run directory.
        rank: the rank that writes them.
        encoders: by directory, what makes a record batch of the contents of its rows. The first is
            that of the steps: a part counts once its file there has its name.
        max_bytes: the most bytes that the parts may have together; None for any number.
        pace: when parts, row groups and further attempts are due.
        grad_scale: of the metadata of each part; None for none.
    """

    def __init__(
        self,
        run: RunDirectory,
        rank: int,
        encoders: Mapping[str, Encode],
        max_bytes: int | None,
        pace: Pace,
        grad_scale: float | None = None,
    ) -> None:
        self._run = run
        self._rank = rank
        self._encoders = encoders
        self._main = next(iter(encoders))
        self._max_bytes = max_bytes
        self._pace = pace
        self._grad_scale = grad_scale
        self.session = 0
        """That of the parts to come."""
        self._rows: dict[str, list[Rows]] = {folder: [] for folder in encoders}
        self._pending = 0  # the bytes of these
        self._sealed: list[tuple[Written, dict[str, Any]]] = []  # parts that are not on the disk
        self._parts: dict[int, Written] = {}  # parts on the disk, by number
        self._replaces: set[int] = set()  # numbers of parts made void by going back
        self._number = 0  # of the next part
        self._before = -1  # the step written last
        self._written = 0  # records in all parts, deleted ones included
        self._gaps: dict[int, str] = {}  # since the last part that is sealed
        self._left = 0  # bytes of temporary files that could not be removed
        self._due = 0.0  # when the pending part is old, or when to try again
        self._has_failed = False  # the last attempt
        self.lost = 0
        """How many steps were dropped because the disk took none."""
        self.incidents: Callable[[], Sequence[tuple[int, int]]] = tuple
        """Tells between which steps incidents are, the latest ones last."""
        self.written: tuple[int, dict[str, int]] | None = None
        """The steps of the last part that was written, and its bytes by directory."""

    def after(self, part: PartName, footer: Footer | None) -> None:
        """Continue after a part that is on the disk already; `footer` is None if it is damaged.

        Parts come in order of writing.
        """
        steps = () if footer is None else tuple([step for step, _ in footer.records])
        size = sum([path.stat().st_size for path in self._paths(part) if path.exists()])
        self._note(Written(part, steps, size))
        self._written = (self._written if footer is None else footer.written) + len(steps)
        self._before = max(steps, default=part.step - 1)
        self._number = part.number + 1

    def _paths(self, part: PartName) -> list[Path]:
        return [self._run.path / folder / str(part) for folder in self._encoders]

    def _note(self, part: Written) -> None:
        """A part that is on the disk. Without what it replaces, its name would have to stay."""
        before = list(self._parts.values())
        if before and (
            part.name.session > before[-1].name.session
            or any(part.name.step <= max(p.steps, default=-1) for p in before)
        ):
            self._replaces.add(part.name.number)
        self._parts[part.name.number] = part

    def clean(self) -> None:
        """Remove what killed writers of the rank left in the directories: temporary files, files
        beside the main one, which a kill kept from coming, and parts that were thinned since."""
        found = [self._run.path / folder for folder in self._encoders]
        self._left = sum([remove_temporaries(d, self._rank) for d in found if d.exists()])
        names = {part.name for part in self._parts.values()}
        for folder in self._encoders:
            for name in list_parts(self._run.path, folder, every=True):
                if name.rank == self._rank and name not in names:
                    (self._run.path / folder / str(name)).unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        """Whether what waits for the disk has the memory that it may have."""
        most = _PARTS_WAITING * self._pace.bytes_per_part
        return self._has_failed and self._waiting >= most

    def takes(self, step: int) -> bool:
        """Whether `add` may be called for this step; otherwise the step is noted as lost."""
        self._gaps = {lost: why for lost, why in self._gaps.items() if lost < step}
        # A step that goes back is kept, as it replaces what the disk has.
        if self.is_full and step > self._before:
            self.lost += 1
            self._gaps[step] = "disk"
            return False
        return True

    def skip(self, step: int, reason: str) -> None:
        """Note that `step` was due and is lost; see docs/format.md for reasons."""
        if step > self._before:
            self._gaps[step] = reason

    def add(self, rows: Rows) -> None:
        """Take the rows of a step into the pending part; of a step that goes back, into a new
        part."""
        if rows.step <= self._before:
            self._seal()
            self._due = self._due if self._has_failed else 0.0
        self._begin()
        self._before = rows.step
        self._rows[self._main].append(rows)
        self._pending += rows.nbytes

    def add_beside(self, folder: str, rows: Sequence[Rows]) -> None:
        """Take rows of other directories, of steps that were added before."""
        if rows:
            self._begin()
            self._rows[folder] += rows
            self._pending += sum([each.nbytes for each in rows])

    def _begin(self) -> None:
        if not self._waits:
            self._due = time.monotonic() + self._pace.seconds_per_part

    @property
    def _is_pending(self) -> bool:
        return any(self._rows.values())

    @property
    def _waits(self) -> bool:
        """Whether there is something to write or to thin."""
        return self._is_pending or bool(self._sealed) or self._has_failed

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        return max(0.0, self._due - time.monotonic()) if self._waits else None

    def flush_if_due(self) -> bool:
        """Write what is pending as a part if it is old or large enough; whether it was."""
        is_large = not self._has_failed and self._pending >= self._pace.bytes_per_part
        if self._waits and (is_large or time.monotonic() >= self._due):
            self.flush()
            return True
        return False

    def flush(self) -> None:
        """Write what is pending, if anything, as a part that is on the disk when this returns.

        Raises:
            OSError: the disk does not take it; it is kept for the next attempt.
            MemoryError: there is no memory to encode it; it is kept, too.
            FileExistsError: another process writes this run, too.
        """
        try:
            self._put()  # what failed before comes first, so that a part can grow meanwhile
            self._seal()
            self._put()
            if self._max_bytes is not None:
                self._thin(self._max_bytes)
        except Exception:
            pause = max(self._pace.seconds_per_part, self._pace.seconds_per_retry)
            self._due, self._has_failed = time.monotonic() + pause, True
            raise
        self._has_failed = False

    @property
    def thinned(self) -> int:
        """How many steps were deleted to keep to `max_bytes`."""
        there = (*self._parts.values(), *(part for part, _ in self._sealed))
        return self._written - sum([len(part.steps) for part in there])

    @property
    def _waiting(self) -> int:
        """The bytes in memory."""
        return self._pending + sum([part.size for part, _ in self._sealed])

    def _seal(self) -> None:
        """Make the pending part files in memory."""
        if not self._is_pending:
            return
        steps = [rows.step for rows in self._rows[self._main]]
        name = PartName(
            self._rank, self._number, self.session, min(steps, default=self._before + 1)
        )
        files = {}
        for folder, encode in self._encoders.items():
            rows = sorted(self._rows[folder], key=lambda each: each.step)
            if not rows and folder != self._main:
                continue
            is_main = folder == self._main
            about = part_about(
                self._rank,
                [(each.step, each.rows) for each in rows],
                self._written,
                self._gaps if is_main else None,
                self._grad_scale if is_main else None,
            )
            files[folder] = encode_part(
                schema_of(folder), encode, rows, about, self._pace.bytes_per_group
            )
        size = sum([content.size for content in files.values()])
        self._sealed.append((Written(name, tuple(steps), size), files))
        self._number += 1
        self._written += len(steps)
        self._rows, self._pending = {folder: [] for folder in self._encoders}, 0
        self._gaps = {}

    def _put(self) -> None:
        """Put the sealed parts on the disk."""
        while self._sealed:
            part, files = self._sealed[0]
            sizes = {folder: content.size for folder, content in files.items()}
            for folder in reversed(list(files)):  # the main one last
                self._put_file(folder, part.name, files[folder])
            self._note(part)
            self.written = len(part.steps), sizes
            del self._sealed[0]

    def _put_file(self, folder: str, name: PartName, content: Any) -> None:
        self._run.check()
        path = self._run.path / folder / str(name)
        path.parent.mkdir(exist_ok=True)
        try:
            # Its name must be free: else another process writes this run, too.
            self._run.write(f"{folder}/{name}", content, self._rank, new=True)
        except FileExistsError:
            # The attempt before may have failed after the file had its name.
            if not self._has_failed or path.read_bytes() != bytes(content):
                raise

    def _thin(self, max_bytes: int) -> None:
        """Delete old steps until the remaining parts hold at most `max_bytes`."""
        sizes = [part.size for part in self._parts.values()]
        excess = self._left + sum(sizes) - max_bytes
        if excess <= 0 or len(sizes) < 2:
            return
        parts = list(self._parts.values())
        for part, level, steps in reductions(parts, self.incidents(), max_bytes):
            before = self._parts.get(part.name.number)
            if before is None:
                continue
            self._reduce(before, level, steps)
            after = self._parts.get(before.name.number)
            excess -= before.size - (0 if after is None else after.size)
            if excess <= 0:
                break

    def _reduce(self, part: Written, level: int, steps: tuple[int, ...]) -> None:
        """Write a part anew, with the steps that stay, or delete it if there are none."""
        if len(steps) == len(part.steps) and steps:
            return
        name, size = part.name._replace(thinned=max(level, part.name.thinned + 1)), 0
        if steps or part.name.number in self._replaces:
            try:
                files = self._reduced(part.name, set(steps))
            except ValueError:  # it is damaged, and stays as long as others can go
                if level < MOST_LEVEL:
                    return
                files = {}
            for folder in reversed(list(files)):
                self._run.write(f"{folder}/{name}", files[folder], self._rank)
                size += files[folder].size
        self._run.check()
        for path in self._paths(part.name):
            path.unlink(missing_ok=True)
        if size:
            self._parts[name.number] = Written(name, steps, size)
        else:
            del self._parts[name.number]

    def _reduced(self, name: PartName, steps: set[int]) -> dict[str, Any]:
        """The files of a part with some of its steps."""
        files = {}
        for folder in self._encoders:
            if not (self._run.path / folder / str(name)).exists():
                continue
            builder = PartBuilder(schema_of(folder))
            with open_part(self._run.path, name, folder) as file:
                footer = file.footer(name)
                records = [(step, rows) for step, rows in footer.records if step in steps]
                if not records and folder != self._main:
                    continue
                for group in range(len(footer.groups)):
                    table = file.read(schema_of(folder).names, [group])
                    kept = np.isin(numbers(table.column("step")), list(steps))
                    builder.add([table.filter(kept)])
            about = part_about(self._rank, records, footer.written, footer.gaps, footer.grad_scale)
            files[folder] = builder.finish(about)
        return files
