"""Footer: which records a part holds, and what else the metadata of the part say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from hookstats.runs.format import FORMAT_VERSION, Extras, PartName
from hookstats.stats.arguments import check_integer


class Gap(NamedTuple):
    """A step that was due, and is lost."""

    number: int
    """Of the record before which the step was; of one to come, where no record followed yet."""
    step: int
    reason: str


class Session(NamedTuple):
    """Where the records of a rank in one process group begin."""

    number: int
    """Of its first record."""
    step: int
    """Of its first record."""
    started: str
    """What tells the process group from others; later ones have greater texts."""


REASONS = ("disk", "stall", "error")
"""Why steps are lost: the disk took no more, the training would have waited, something failed."""


MOST_ROWS = 1 << 20
"""The most rows of a record, each of which is described in Python."""


class Footer(NamedTuple):
    """Which records a part holds, in order, and how its columns are to be read."""

    version: int
    """The format_version of the part."""
    records: list[tuple[int, int]]
    """The step of each record and its number of rows."""
    written: int | None
    """The number of records that earlier parts took; None in version 1."""
    groups: list[int]
    """The number of rows of each row group; every row group has whole records."""
    rewinds: list[tuple[int, int]]
    """(number, step) of the records so far, numbered from 0, that make void what was recorded
    before of their step and of later steps, even if their part was deleted since. Empty in version
    1."""
    extras: Extras
    """The optional groups of columns that the part has."""
    bins: dict[str, Any | None]
    """The descriptions of the bins, under the names `bins` and `channel_bins`; empty before version
    3."""
    gaps: list[Gap]
    """The steps that were lost after the part before."""
    sessions: list[Session]
    """The process groups in which the rank wrote up to the end of the part, in order."""
    grad_scale: float | None = None
    """The factor for gradients of outputs that the header had when the part was written; None:
    unknown."""
    is_small: bool = False
    """Whether reading few of the columns of a row group saves next to nothing."""


def footer_json(
    rank: int,
    records: Sequence[tuple[int, int]],
    written: int,
    rewinds: Sequence[tuple[int, int]],
    gaps: Sequence[Gap],
    sessions: Sequence[Session],
    described: Mapping[str, Any],
    requires: Sequence[str] = (),
) -> str:
    """The metadata of a new part, as `read_footer` reads them.

    described: the bins, and what else the header says that readers need with the part.
    requires: the features without which the part would be misread.
    """
    about = {
        "format_version": FORMAT_VERSION,
        **({"requires": requires} if requires else {}),
        "rank": rank,
        "records": records,
        "written": written,
        "rewinds": rewinds,
        **({"gaps": gaps} if gaps else {}),
        **({"sessions": sessions} if sessions else {}),
        **described,
    }
    return json.dumps(about)


def parse_footer(
    about: Mapping[str, Any], version: int, part: PartName, groups: list[int], extras: Extras
) -> Footer:
    """The footer that the metadata `about` describe, of a part of this name.

    Entries that are unknown are ignored.

    Raises:
        ValueError: an entry is missing, or contradicts another, the name or the row groups.
    """
    if check_integer("rank", about.get("rank"), 0) != part.rank:
        raise ValueError(f"it belongs to rank {about['rank']}")
    records = _pairs("records", about.get("records"))
    if not records:
        raise ValueError("it has no records")
    if records[0][0] != part.step:
        raise ValueError(
            f"its first record has step {records[0][0]}, but its name says {part.step}"
        )
    sites = max(rows for _, rows in records)
    if sites > MOST_ROWS:
        raise ValueError(f"a record has {sites} rows, expected at most {MOST_ROWS}")
    starts = set(accumulate((rows for _, rows in records), initial=0))
    if sum(groups) != max(starts) or not starts.issuperset(accumulate(groups)):
        raise ValueError(
            f"its row groups have {groups} rows, "
            f"but its records have {[rows for _, rows in records]}"
        )
    written, rewinds = None, []
    if version > 1:
        written = check_integer("written", about.get("written"), 0)
        rewinds = _pairs("rewinds", about.get("rewinds"))
        _check_rewinds(rewinds, written, [step for step, _ in records])
    bins = {} if version < 3 else {name: about[name] for name in ("bins", "channel_bins")}
    gaps = [] if version < 3 else _gaps(about.get("gaps"), written or 0, len(records))
    sessions = [] if version < 3 else _sessions(about.get("sessions"))
    scale = check_grad_scale(about.get("grad_scale"))
    return Footer(version, records, written, groups, rewinds, extras, bins, gaps, sessions, scale)


def check_grad_scale(value: Any) -> float | None:
    """`value` as a factor for gradients; None stays None.

    Raises:
        ValueError: it is no number greater than 0, or not finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"grad_scale = {value!r}: expected a number greater than 0")
    return float(value)


def noted(rewinds: list[tuple[int, int]], number: int, step: int) -> None:
    """Add the rewind to `step` by record `number`; rewinds that become void are dropped."""
    while rewinds and rewinds[-1][1] >= step:
        rewinds.pop()
    rewinds.append((number, step))


def _check_rewinds(rewinds: list[tuple[int, int]], written: int, steps: list[int]) -> None:
    """Raise a ValueError if the rewinds contradict the order of the records' steps."""
    here: list[tuple[int, int]] = []
    for i in range(1, len(steps)):
        if steps[i] <= steps[i - 1]:
            noted(here, written + i, steps[i])
    # Whether the first record of the part went back, too, cannot be told from this part alone.
    numbers = [number for number, _ in rewinds]
    if (
        [rewind for rewind in rewinds if rewind[0] > written] != here
        or any(rewind != (written, steps[0]) for rewind in rewinds if rewind[0] == written)
        or numbers != sorted(set(numbers))
    ):
        raise ValueError(f"its rewinds are {rewinds}, but its records have the steps {steps}")


def _gaps(value: Any, written: int, records: int) -> list[Gap]:
    """`value` as gaps before, among or right after the records of a part; None as no gaps."""
    gaps = []
    for gap in value or ():
        match gap:
            case [number, step, str(reason)] if reason in REASONS:
                number = check_integer("gaps has the number", number, written, written + records)
                gaps.append(Gap(number, check_integer("gaps has the step", step, 0), reason))
            case _:
                raise ValueError(f"gaps has {gap!r}: expected [number, step, reason]")
    if gaps != sorted(gaps, key=lambda gap: gap.number):
        raise ValueError(f"its gaps are {gaps}: expected ascending numbers")
    return gaps


def _sessions(value: Any) -> list[Session]:
    """`value` as the process groups of a rank; None as none."""
    sessions = []
    for session in value or ():
        match session:
            case [number, step, str(started)]:
                number = check_integer("sessions has the number", number, 0)
                step = check_integer("sessions has the step", step, 0)
                sessions.append(Session(number, step, started))
            case _:
                raise ValueError(f"sessions has {session!r}: expected [number, step, started]")
    if [s.number for s in sessions] != sorted({s.number for s in sessions}):
        raise ValueError(f"its sessions are {sessions}: expected ascending numbers")
    return sessions


def _pairs(name: str, value: Any) -> list[tuple[int, int]]:
    """`value` as pairs of integers, 0 or more."""
    if not isinstance(value, list):
        raise ValueError(f"{name} = {value!r}: expected a list of pairs of integers")
    pairs = []
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise ValueError(f"{name} has {pair!r}: expected a pair of integers")
        first, second = (check_integer(name, number, 0, 2**63 - 1) for number in pair)
        pairs.append((first, second))
    return pairs
