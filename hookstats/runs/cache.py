"""Cache: what was read of the parts of a run, shared by the run and those of its ranks alone."""

from __future__ import annotations

from collections import OrderedDict

from hookstats.runs.decode import Group, RunBins
from hookstats.runs.footer import Footer
from hookstats.runs.format import PartName

_BYTES = 256 << 20
_GROUPS = 4

Place = tuple[PartName, int, RunBins]
"""A part, the number of a row group, and the bins that its histograms were checked by."""


class Cache:
    """Footers of parts, and the row groups that were used last; parts never change."""

    def __init__(self) -> None:
        self.footers: dict[PartName, Footer] = {}
        """Those that were read, also of parts that are gone or damaged."""
        self.groups: OrderedDict[Place, Group] = OrderedDict()
        """The one used last comes last."""
        self.most_bytes = _BYTES
        """What the row groups may take; the one used last is kept anyway."""
        self._nbytes = 0

    def group(self, place: Place) -> Group | None:
        """A row group, if it is known."""
        found = self.groups.get(place)
        if found is not None:
            self.groups.move_to_end(place)
        return found

    def keep(self, place: Place, group: Group) -> None:
        """Keep a row group that was read."""
        self.groups[place] = group
        self._nbytes += group.nbytes
        ranks = {name.rank for name in self.footers}
        most = max(_GROUPS, 2 * len(ranks))  # of a step and the next, of all ranks
        while len(self.groups) > 1 and (self._nbytes > self.most_bytes or len(self.groups) > most):
            _, oldest = self.groups.popitem(last=False)
            self._nbytes -= oldest.nbytes
