"""PartWriter: one rank's parts in one directory of a run, as they are filled, written and thinned.

What a part holds is its caller's: records, or scalars.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hookstats.runs.encode import PartBuilder, Rows
from hookstats.runs.files import remove_temporaries, write_file
from hookstats.runs.footer import Footer, Gap, Session, footer_json, noted
from hookstats.runs.format import PHASE_COLUMN, PHASES, SAMPLED, PartName
from hookstats.runs.headers import says_sampled
from hookstats.runs.thinning import Written, blocks_around, first_to_go

_PARTS_WAITING = 2
"""The number of parts whose bytes may wait in memory while the disk takes none."""


class Pace(NamedTuple):
    """When a part, a row group or a further attempt is due."""

    seconds_per_part: float
    """After so many seconds from its first step on, a part is written."""
    bytes_per_part: float
    """With so many bytes, a part is written."""
    bytes_per_group: int
    """With so many bytes, a row group of a part ends."""
    seconds_per_retry: float
    """The least time between two attempts to write a part that the disk did not take."""


class PartWriter:
    """Fills parts step by step, and puts each on the disk once it is old or large enough.

    Args:
        directory: where the parts go; made with the first part if it is missing.
        rank: the rank that writes them.
        described: further metadata of each part, JSON-able.
        max_bytes: the most bytes that the parts may have together; None for any number.
        pace: when parts, row groups and further attempts are due.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        described: Mapping[str, Any],
        max_bytes: int | None,
        pace: Pace,
        started: str | None = None,
    ) -> None:
        """started: what tells the process group from others; see `footer.Session`."""
        self._directory = directory
        self._rank = rank
        self._described = described
        self._max_bytes = max_bytes
        self._pace = pace
        self._part: PartBuilder | None = None
        self._first = 0  # its first step
        self._sealed: list[tuple[Written, Any]] = []  # parts that are not on the disk yet
        self._parts: dict[int, Written] = {}  # those that are, by number
        self._number = 0  # of the next part
        self._written = 0  # steps in all parts, those that were deleted included
        self._before = -1  # the step written last
        self._rewinds: list[tuple[int, int]] = []  # see footer.Footer
        self.lost = 0
        """How many steps were dropped because the disk took none."""
        self.block: int | None = None
        """The steps that are thinned together, see `thinning`; None: those of a part."""
        self.before_thinning: Callable[[], object] = lambda: None
        """Called before the first part is deleted."""
        self.ranges_kept: Callable[[], Sequence[tuple[int, int]]] = tuple
        """Tells between which steps parts are deleted last, the most important ranges last."""
        self._gaps: list[Gap] = []  # since the last part that is sealed
        self._failing = False  # the last attempt to write a part failed
        self._retry = 0.0  # when to try again
        self._left = 0  # bytes of temporary files that could not be removed
        self._due = math.inf
        self._started = started
        self._sessions: list[Session] = []

    def after(self, part: PartName, footer: Footer | None) -> None:
        """Continue after a part that is on the disk already; `footer` is None if it is damaged.

        Parts come in order of writing.
        """
        records = 0 if footer is None else len(footer.records)
        if footer is not None:
            self._written = records + (footer.written or self._written)
            self._rewinds = footer.rewinds
            self._sessions = footer.sessions
            self._before = footer.records[-1][0]
        size = (self._directory / str(part)).stat().st_size
        last = part.step if footer is None else max(step for step, _ in footer.records)
        self._parts[part.number] = Written(part, records, size, last)
        self._number = part.number + 1

    def clean(self) -> None:
        """Remove what killed writers of the rank left in the directory."""
        if self._directory.exists():
            self._left = remove_temporaries(self._directory, self._rank)

    @property
    def is_full(self) -> bool:
        """Whether what waits for the disk has the memory that it may have."""
        return self._failing and self._waiting >= _PARTS_WAITING * self._pace.bytes_per_part

    def takes(self, step: int) -> bool:
        """Whether `add` may be called for this step; otherwise the step is noted as lost."""
        while self._gaps and self._gaps[-1].step >= step:
            self._gaps.pop()  # training went back: the step comes again
        # A step that goes back is kept, as it makes void what the disk has.
        if self.is_full and step > self._before:
            self.lost += 1
            self._gaps.append(Gap(self._next, step, "disk" if self._sealed else "error"))
            return False
        return True

    def skip(self, step: int, reason: str) -> None:
        """Note that `step` was due and is lost; the reason is that of a gap in docs/format.md."""
        if step > self._before:
            self._gaps.append(Gap(self._next, step, reason))

    def add(self, rows: Rows, schema: Any, encode: Callable[[Sequence[Any]], Any]) -> None:
        """Take the rows of a step, which `encode` turns into the `schema`, into the pending part.

        A part of another schema, compared by identity, or of another block is sealed first.

        Raises:
            MemoryError: there is no memory for something; if the part has the step, the next
                attempt encodes it, and `skip` does nothing.
        """
        if self._part is not None and (
            self._part.schema is not schema or self._block(rows.step) != self._block(self._first)
        ):
            self._seal(self._part)
        if self._part is None:
            self._part = PartBuilder(schema, encode, self._pace.bytes_per_group)
            self._first = rows.step
            self._due = time.monotonic() + self._pace.seconds_per_part
        if self._started is not None and self._started not in (s.started for s in self._sessions):
            self._sessions.append(Session(self._next, rows.step, self._started))
        if rows.step <= self._before:
            noted(self._rewinds, self._next, rows.step)
        self._before = rows.step
        with self._keeping(self._part):
            self._part.add(rows)

    def due_in(self) -> float | None:
        """Seconds until `flush_if_due` has something to write; None while nothing is pending."""
        if self._part is None and not self._failing:
            return 0.0 if self._sealed else None
        return max(0.0, (self._retry if self._failing else self._due) - time.monotonic())

    def flush_if_due(self) -> bool:
        """Write what is pending as a part if it is old or large enough; whether it was."""
        begun = bool(self._sealed) and not self._failing
        if begun:
            self._put()
            self._keep_to_limit()
        now, part = time.monotonic(), self._part
        if self._failing:
            due = now >= self._retry
        else:
            due = part is not None and (
                part.nbytes >= self._pace.bytes_per_part or now >= self._due
            )
        if due:
            self.flush()
        return begun or due

    def flush(self) -> None:
        """Write what is pending, if anything, as a part that is on the disk when this returns.

        Raises:
            OSError: the disk does not take it; it is kept for the next attempt.
            FileExistsError: another process writes this run, too.
        """
        self._put()  # what failed before comes first, so that a part can grow meanwhile
        if self._part is not None:
            self._seal(self._part)
            self._put()
        self._keep_to_limit()

    def _keep_to_limit(self) -> None:
        if self._max_bytes is not None:
            self._thin(self._max_bytes)

    def _block(self, step: int) -> int:
        return 0 if self.block is None else step // self.block

    @property
    def thinned(self) -> int:
        """The number of deleted steps."""
        there = (*self._parts.values(), *(part for part, _ in self._sealed))
        return self._written - sum(part.steps for part in there)

    @property
    def _next(self) -> int:
        """The number of the next step that is added."""
        return self._written + (0 if self._part is None else len(self._part.records))

    @property
    def _waiting(self) -> int:
        """The bytes in memory."""
        sealed = sum(part.size for part, _ in self._sealed)
        return sealed + (0 if self._part is None else self._part.nbytes)

    def _put(self) -> None:
        """Put the sealed parts on the disk."""
        while self._sealed:
            part, content = self._sealed[0]
            path = self._directory / str(part.name)
            try:
                self._directory.mkdir(exist_ok=True)
                # Its name must be free: else another process writes this run, too.
                write_file(path, content, self._rank, new=True)
            except OSError as error:
                taken = isinstance(error, FileExistsError)
                # The attempt before may have failed after the file had its name.
                if not (taken and self._failing and path.read_bytes() == bytes(content)):
                    self._try_later()
                    raise
            self._parts[part.name.number] = part
            del self._sealed[0]
        self._failing = False

    def _try_later(self) -> None:
        self._failing = True
        pause = max(self._pace.seconds_per_part, self._pace.seconds_per_retry)
        self._retry = time.monotonic() + pause

    @contextmanager
    def _keeping(self, part: PartBuilder) -> Iterator[None]:
        """In this context, an error leaves the part as it is for the next attempt; if the part is
        broken, its steps become gaps."""
        try:
            yield
        except Exception:
            self._try_later()
            # What says that training went back cannot be left out: nothing more is written then.
            if part.broken and not any(number >= self._written for number, _ in self._rewinds):
                steps = {step: "error" for step, _ in part.records}
                steps |= {gap.step: gap.reason for gap in self._gaps}
                self._gaps = [Gap(self._written, step, steps[step]) for step in sorted(steps)]
                self._part, self._due = None, math.inf
            raise

    def _seal(self, part: PartBuilder) -> None:
        """Make the pending part a file in memory."""
        about = footer_json(
            self._rank,
            part.records,
            self._written,
            self._rewinds,
            self._gaps,
            self._sessions,
            self._described,
            [
                *([PHASES] if PHASE_COLUMN in part.schema.names else ()),
                *([SAMPLED] if says_sampled(self._described) else ()),
            ],
        )
        with self._keeping(part):
            content = part.finish(about)
        name = PartName(self._rank, self._number, part.records[0][0])
        last = max(step for step, _ in part.records)
        self._sealed.append((Written(name, len(part.records), content.size, last), content))
        self._number += 1
        self._written += len(part.records)
        self._part, self._due, self._gaps = None, math.inf, []

    def _thin(self, max_bytes: int) -> None:
        """Delete old parts until the remaining parts hold at most `max_bytes`."""
        excess = self._left + sum(part.size for part in self._parts.values()) - max_bytes
        if excess <= 0 or len(self._parts) < 2:
            return
        if not self.thinned:
            self.before_thinning()
        late = blocks_around(self._parts, self.block, self.ranges_kept(), max_bytes // 2)
        for together in first_to_go(dict(self._parts), self.block, max_bytes, late):
            for number in together:
                part = self._parts.pop(number)
                excess -= part.size
                (self._directory / str(part.name)).unlink(missing_ok=True)
            if excess <= 0:
                break
