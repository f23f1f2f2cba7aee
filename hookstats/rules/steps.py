"""Steps: consecutive records with the same sites, and their numbers for all steps at once.

Rules look at hundreds of steps before they find anything. So the numbers that they look at are
computed for many steps together, and `Rule.suspects` says at which of them a rule has to look.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Kind, parse_kind
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64
from hookstats.records.wholes import wholes
from hookstats.rules.past_inputs import SeenInputs
from hookstats.rules.sums import Sums
from hookstats.rules.windows import Windows
from hookstats.stats.derived import columns_of, dead, rms

Flags = NDArray[np.bool_]
_T = TypeVar("_T")


class Sites:
    """What follows from the sites of a record alone; most steps have the same."""

    def __init__(self, sites: tuple[SiteInfo, ...]) -> None:
        self.sites = sites
        self._found: dict[Hashable, Any] = {}
        self.kinds: tuple[Kind, ...] = tuple([parse_kind(site.kind) for site in sites])
        self.plain_kinds = tuple([kind.plain for kind in self.kinds])
        self.gradient: Flags = np.array([kind.is_gradient for kind in self.kinds], bool)
        self.channels: Int64 = np.array([site.channels for site in sites], np.int64)
        self.arguments: Flags = np.array(
            [
                kind.plain == "input" and (site.name == "" or bool(kind.path))
                for site, kind in zip(sites, self.kinds, strict=True)
            ],
            bool,
        )
        """bool [S]: which sites are inputs of the model, or arguments of a module but the first."""

    def once(self, find: Callable[[Sites], _T]) -> _T:
        """What `find`, a function of a module, finds in the sites; it is called once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: _T = self._found[find]
        return found

    def of_kind(self, kind: str) -> Flags:
        """bool [S]: which sites are of a plain kind."""
        return self._flags(("kind", kind), lambda: [plain == kind for plain in self.plain_kinds])

    def of_type(self, dtype: str) -> Flags:
        """bool [S]: which sites have tensors of this dtype."""
        return self._flags(("dtype", dtype), lambda: [site.dtype == dtype for site in self.sites])

    def _flags(self, key: tuple[str, str], find: Callable[[], list[bool]]) -> Flags:
        if key not in self._found:
            self._found[key] = np.array(find(), bool)
        found: Flags = self._found[key]
        return found


class Lasting(NamedTuple):
    """The channels that are dead, or were in the step before: in most steps few of all."""

    rows: Int64 | slice
    """Which n of the R rows they are."""
    steps: Int64
    """int64 [B, n]: see `History.dead_steps`."""
    values: Int64
    """int64 [B, n]: see `History.dead_values`."""


class Steps:
    """B consecutive records with the same S sites and R rows, one record or more.

    Arrays are shared: read them, never write to them.
    """

    def __init__(self, records: Sequence[StepRecord], sites: Sites) -> None:
        self.records = records
        self.sites = sites
        self.offsets = records[0].offsets
        """int64 [S + 1]: site s owns rows offsets[s]:offsets[s + 1]."""
        steps, rows = len(records), int(self.offsets[-1])
        starts = np.arange(steps)[:, None] * rows
        self._ends = np.append((starts + self.offsets[:-1]).ravel(), steps * rows)
        shape, (moments, tallies) = (steps, len(sites.sites)), wholes(records)
        self.moments: Float64 = moments.reshape(*shape, moments.shape[1])
        """float64 [B, S, 5 or 7]: of whole tensors."""
        self.tallies: Int64 = tallies.reshape(*shape, tallies.shape[1])
        """int64 [B, S, 5]."""
        self.columns = columns_of(self.moments, self.tallies)
        """The columns of the states of whole tensors, [B, S] each; see `stats.derived`."""
        self.channels = tuple([columns_of(r.moments, r.tallies) for r in records])
        """The columns of the states of channels by step, [R] each: megabytes, which stay apart."""
        self.rms: Float64 = rms(self.columns)
        """float64 [B, S]: the rms of the finite values; NaN without any."""
        bad = [self.columns(name) for name in ("nan", "posinf", "neginf")]
        self.nonfinite: Flags = (np.add.reduce(bad) > 0) & ~self._masks()
        """bool [B, S]: which sites have non-finite values that are no mask's."""
        self.dead: Flags = np.array([dead(columns) for columns in self.channels])
        """bool [B, R]: whether each channel is dead."""
        # `History.extend` sets what the steps before have to do with.
        self.pushed: Int64
        """int64 [B]: how many steps there were, with each."""
        self.complete: bool
        """Whether the steps have all sites that any step so far had."""
        self.calls: Float64
        """float64 [B, S]: see `History.calls`."""
        self.nonfinite_steps: list[int]
        """See `History.nonfinite_steps`."""
        self.lasting: Lasting
        self.inputs: list[SeenInputs]
        """What the inputs were, by step."""
        self.past: Windows
        """The rms in the steps before each."""
        self.sums: Sums
        """See `History.sums`."""
        self.outputs_of: Mapping[str, Sequence[int]]
        """See `History.outputs_of`."""
        self.last_output: int | None
        """See `History.last_output`."""
        self.last_gradient: int | None
        """See `History.last_gradient`."""

    def __len__(self) -> int:
        return len(self.records)

    def _masks(self) -> Flags:
        """bool [B, S]: arguments that have nothing but zeros and -inf, which attention adds."""
        found: Flags = np.broadcast_to(self.sites.arguments, self.rms.shape)
        if not self.sites.arguments.any():
            return found
        column = self.columns
        masks: Flags = (column("nan") + column("posinf") == 0) & (column("zero") == column("count"))
        return found & masks

    @cached_property
    def all(self) -> Flags:
        """bool [B]: every step."""
        return np.ones(len(self), bool)

    @cached_property
    def none(self) -> Flags:
        """bool [B]: no step."""
        return np.zeros(len(self), bool)

    def rows(self, site: int) -> slice:
        """The rows of a site, in [B, R]."""
        return slice(int(self.offsets[site]), int(self.offsets[site + 1]))

    def in_sites(self, found: Flags) -> Int64:
        """How many of each site's rows are true in `found` [B, R], as [B, S]."""
        places = np.flatnonzero(found)
        out: Int64 = np.diff(np.searchsorted(places, self._ends)).reshape(len(self), -1)
        return out


def in_steps(found: Any) -> Flags:
    """bool [B]: in which steps any of `found`, bool [B] or [B, ...], is true."""
    flags = np.asarray(found, bool)
    out: Flags = np.logical_or.reduce(flags.reshape(len(flags), -1), axis=1)
    return out


def runs(records: Sequence[StepRecord]) -> Iterator[Sequence[StepRecord]]:
    """The records, cut where sites or bins change, and where training goes back."""
    first = 0
    for i in range(1, len(records) + 1):
        if i == len(records) or not _follows(records[i - 1], records[i]):
            yield records[first:i]
            first = i


def _follows(before: StepRecord, record: StepRecord) -> bool:
    return (
        before.sites == record.sites
        and before.step < record.step
        and before.rank == record.rank
        and before.bins == record.bins
        and before.moments.shape == record.moments.shape
    )
