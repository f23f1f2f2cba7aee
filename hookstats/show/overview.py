"""overview(): the whole tensors of a run, step by step, or merged where steps are too many."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hookstats.records.keys import InOrder, Key, plain_kind
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64, Int32, Int64
from hookstats.runs.decode import numbers
from hookstats.runs.format import STATISTICS
from hookstats.runs.run import Run
from hookstats.runs.selections import SiteNumbers
from hookstats.show.progress import track
from hookstats.stats import state
from hookstats.stats.derived import columns_of
from hookstats.stats.merge import joined_rows, merge
from hookstats.stats.printable import printable

Spans = tuple[tuple[int, int], ...]

MOST_CELLS = 2_500_000  # sites * columns that are kept in memory, some 100 bytes each
NEAR = 2  # so many steps on each side of a step set apart stay apart, too


@dataclass(frozen=True)
class Overview:
    """S sites in T columns; a column is one step, or merges all recorded steps of its span.

    Sites are in order of execution; gradients and parameters stand beside their module's output.
    """

    rank: int | None
    """None: all ranks, merged."""
    steps: tuple[int, ...]
    """Every recorded step that is shown, ascending."""
    spans: Spans
    """[T]: column t merges ``steps[first:end]``."""
    sites: tuple[SiteInfo, ...]
    """[S]: the sites as the last of their steps recorded them."""
    uneven: frozenset[int]
    """The sites whose number of channels changed from step to step."""
    moments: Float64
    """[T, S, 5]: `state.MOMENTS` of the whole tensor."""
    tallies: Int64
    """[T, S, 5]: `state.TALLIES` of the whole tensor."""
    observed: Int32
    """int32 [T, S]: the number of calls merged."""
    recorded: Int32
    """int32 [T, S]: the number of steps merged; 0 where nothing was recorded."""
    dead: Int32
    """int32 [T, S]: the dead channels, see `insight.dead`; of several steps the greatest number; -1
    where nobody knows."""

    def merged(self, starts: Sequence[int]) -> Overview:
        """Fewer columns: each merges the columns from one of `starts` to the next."""
        pairs = list(pairwise([*starts, len(self.spans)]))
        moments, tallies = self.moments[list(starts)], self.tallies[list(starts)]
        sites = np.arange(len(self.sites))
        for column, (first, end) in enumerate(pairs):
            if end - first > 1:
                moments[column], tallies[column] = merge(
                    self.moments[first:end].reshape(-1, moments.shape[2]),
                    self.tallies[first:end].reshape(-1, tallies.shape[2]),
                    np.tile(sites, end - first),
                    len(sites),
                )
        spans = tuple((self.spans[a][0], self.spans[b - 1][1]) for a, b in pairs)
        return Overview(
            self.rank,
            self.steps,
            spans,
            self.sites,
            self.uneven,
            moments,
            tallies,
            np.add.reduceat(self.observed, starts, axis=0),
            np.add.reduceat(self.recorded, starts, axis=0),
            np.maximum.reduceat(self.dead, starts, axis=0),
        )


def overview(
    run: Run,
    steps: Collection[int] | None = None,
    apart: Collection[int] = (),
    cells: int = MOST_CELLS,
) -> Overview:
    """The whole tensors of a run; every step has a column while there is room.

    Every step is read once, without its channels.

    Args:
        steps: the recorded steps to show, ascending; by default all.
        apart: steps that are never merged, nor are their neighbours.
        cells: the most sites * columns there may be; beyond it, columns merge neighbouring steps.
    Raises:
        ValueError: there are no steps.
    """
    chosen = list(run.steps if steps is None else steps)
    none = ValueError(f"{printable(str(run.path))}: expected a run with steps, found none yet")
    if not chosen:
        raise none
    sites = 1
    with suppress(KeyError):  # it turns out to be damaged, and is left out
        sites = max(1, len(run.tensors(chosen[-1])))
    places = {step: i for i, step in enumerate(chosen)}
    spans = spans_of(len(chosen), max(1, cells // sites), [places[s] for s in apart if s in places])
    rows = Rows()
    column_of = {chosen[i]: t for t, span in enumerate(spans) for i in range(*span)}
    wanted = read_steps(run, rows, chosen)
    columns: dict[int, Read] = {}
    pending: list[Read] = []
    for _, read in zip(track(chosen, "reading steps"), wanted, strict=False):
        if pending and column_of[pending[0].step] != column_of[read.step]:
            columns[column_of[pending[0].step]] = merge_steps(pending, len(rows.keys))
            pending = []
        pending.append(read)
    if not pending:  # every part turned out to be damaged, and was left out
        raise none
    columns[column_of[pending[0].step]] = merge_steps(pending, len(rows.keys))
    # A run that is being written may have deleted steps meanwhile, to keep to max_bytes.
    spans = tuple(span for t, span in enumerate(spans) if t in columns)
    columns = dict(enumerate(columns.values()))
    return _join(run, tuple(chosen), spans, rows, columns)


def spans_of(count: int, columns: int, apart: Collection[int] = ()) -> Spans:
    """At most about `columns` nearly equal spans of `count` things, those of `apart` and their
    neighbours being alone."""
    alone = {j for i in apart for j in range(i - NEAR, i + NEAR + 1) if 0 <= j < count}
    ends = np.linspace(0, count, min(columns, count) + 1).round().astype(int).tolist()
    bounds = {*ends, *alone, *(i + 1 for i in alone)}
    return tuple(pairwise(sorted(bounds)))


class Read(NamedTuple):
    """What a step recorded of some sites."""

    step: int
    rows: Int64
    moments: Float64
    tallies: Int64
    observed: Int64
    recorded: Int64
    """In how many steps: one, until steps are merged."""
    dead: Int64


class Rows:
    """The rows of the sites, in the order in which the sites come."""

    def __init__(self) -> None:
        self.keys: dict[Key, int] = {}
        self.order = InOrder[int]()
        """The rows in order of execution, as far as steps agree."""
        self._numbers = SiteNumbers(self.keys, self.order)
        self.uneven: set[int] = set()
        self.channels = np.zeros(0, np.int64)
        """Of each row the number of channels, as recorded first."""

    def of(self, table: Any) -> Int64:
        """The rows of the sites in the rows of a table, step by step."""
        return self._numbers.of(table)

    def see(self, rows: Int64, channels: Int64) -> None:
        """Note how many channels the sites have."""
        new = np.full(len(self.keys) - len(self.channels), -1)
        known = self.channels = np.concatenate((self.channels, new))
        fresh = known[rows] < 0
        known[rows[fresh][::-1]] = channels[fresh][::-1]
        self.uneven.update(rows[known[rows] != channels].tolist())


def read_steps(run: Run, rows: Rows, steps: Collection[int] | None = None) -> Iterator[Read]:
    """Some steps of a run, by default all, in order; `rows` gets the sites that these have."""
    chosen = None if steps is None else np.array(list(steps), np.int64)
    names = ["step", "site", "kind", "channels", "observed", "dead", *STATISTICS]
    for table in run.batches(names):
        if chosen is not None:
            known = np.isin(numbers(table.column("step")), chosen)
            if not known.any():
                continue
            table = table if known.all() else table.filter(known)
        row = rows.of(table)
        step_of = numbers(table.column("step"))
        rows.see(row, numbers(table.column("channels")))
        died = numbers(table.column("dead")).astype(np.int64)
        moments = np.stack([numbers(table.column(name)) for name in state.MOMENTS], 1)
        tallies = np.stack([numbers(table.column(name)) for name in state.TALLIES], 1)
        observed = numbers(table.column("observed"))
        bounds = np.flatnonzero(np.diff(step_of, prepend=-1, append=-1)).tolist()
        for span in (slice(*pair) for pair in pairwise(bounds)):
            step = int(step_of[span.start])
            once = np.ones(len(row[span]), np.int64)
            state_of = moments[span], tallies[span]
            yield Read(step, row[span], *state_of, observed[span], once, died[span])


def merge_steps(several: list[Read], size: int) -> Read:
    """The steps of a column as one, over the first `size` rows."""
    if len(several) == 1:
        return several[0]
    observed, recorded = np.zeros(size, np.int64), np.zeros(size, np.int64)
    died = np.full(size, -1)
    for read in several:
        observed[read.rows] += read.observed
        recorded[read.rows] += read.recorded
        died[read.rows] = np.maximum(died[read.rows], read.dead)
    both = merge(
        joined_rows([read.moments for read in several]),
        joined_rows([read.tallies for read in several]),
        np.concatenate([read.rows for read in several]),
        size,
    )
    return Read(several[0].step, np.arange(size), *both, observed, recorded, died)


def _join(
    run: Run, steps: tuple[int, ...], spans: Spans, rows: Rows, columns: dict[int, Read]
) -> Overview:
    """The overview of these columns, the sites in order of execution."""
    known, ordered = list(rows.keys), list(rows.order)
    order = [ordered[i] for i in execution_order([known[row] for row in ordered])]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    cells = placed(columns, place, (len(spans), len(order)))
    keys = list(rows.keys)
    seen = cells["observed"].T[:, ::-1] > 0
    last = [spans[len(spans) - 1 - int(row.argmax())] for row in seen]
    infos = _infos(run, {keys[i]: steps[slice(*last[place[i]])] for i in order})
    return Overview(
        rank=run.rank,
        steps=steps,
        spans=spans,
        sites=tuple(infos[keys[i]] for i in order),
        uneven=frozenset(int(place[i]) for i in rows.uneven),
        **cells,
    )


def placed(columns: dict[int, Read], place: Int64, shape: tuple[int, int]) -> dict[str, Any]:
    """The arrays of an `Overview` of `shape` [T, S], by name; `columns` are taken out of the dict,
    as the memory of both would not be little.

    place: the site of each row of `columns`; -1 for none.
    """
    cells = {
        "moments": np.tile(np.array(state.IDENTITY), (*shape, 1)),
        "tallies": np.zeros((*shape, len(state.TALLIES)), np.int64),
        "observed": np.zeros(shape, np.int32),
        "recorded": np.zeros(shape, np.int32),
        "dead": np.full(shape, -1, np.int32),
    }
    for t in list(columns):
        read = columns.pop(t)
        at = place[read.rows]
        for name, array in cells.items():
            array[t, at[at >= 0]] = getattr(read, name)[at >= 0]
    return cells


def _infos(run: Run, last: dict[Key, tuple[int, ...]]) -> dict[Key, SiteInfo]:
    """The sites as recorded last, each in the last of some steps."""
    found: dict[Key, SiteInfo] = {}
    for back in range(1, 1 + max(map(len, last.values()))):
        wanted = {k: steps[-back] for k, steps in last.items() if k not in found and steps[-back:]}
        for step in sorted(set(wanted.values())):
            here = {(site.name, site.kind): site for site in run.tensors(step).sites}
            found |= {key: here[key] for key in wanted if wanted[key] == step and key in here}
    return {key: found[key] for key in last}


def execution_order(keys: Sequence[Key]) -> list[int]:
    """The indices of keys, ordered by when the module first gave an output or took an input.

    Gradients and parameters arrive in any order: they stand where the values of their module do.
    Modules without a recorded value come last, in the order of the keys.
    """
    first: dict[str, int] = {}
    for i, (name, kind) in enumerate(keys):
        if plain_kind(kind) in ("output", "input"):
            first.setdefault(name, i)

    def place(i: int) -> tuple[int, int]:
        name, kind = keys[i]
        if plain_kind(kind) in ("param", "param_grad"):
            name = name.rpartition(".")[0]
        return first.get(name, len(keys)), i

    return sorted(range(len(keys)), key=place)


def norms_of(view: Overview) -> list[float | None] | None:
    """[T]: the L2 norm of all gradients of parameters, as `gradient_norm` has it; NaN where any is
    NaN, infinite where any is infinite, None where none was recorded; None where there are none in
    any column. Of a column of several steps it is the root of the mean square, over the steps that
    recorded gradients."""
    chosen = [s for s, site in enumerate(view.sites) if plain_kind(site.kind) == "param_grad"]
    if not chosen:
        return None
    steps = view.recorded[:, chosen].max(1)
    column = columns_of(view.moments[:, chosen], view.tallies[:, chosen])
    with np.errstate(all="ignore"):
        squares = column("m2") + column("count") * np.square(column("mean"))
        found = np.sqrt(squares.sum(1) / steps)
    found[(column("posinf") + column("neginf")).sum(1) > 0] = np.inf
    found[column("nan").sum(1) > 0] = np.nan
    return [norm if many else None for norm, many in zip(found.tolist(), steps, strict=True)]
