"""paired(): the whole tensors of another run, in the columns and rows of an overview."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from hookstats.runs.run import Run
from hookstats.show.overview import Overview, Read, Rows, merge_steps, read_steps
from hookstats.show.progress import track
from hookstats.stats import state


def paired(other: Run, view: Overview, name: str = "the other run") -> Overview:
    """What another run recorded of the sites and in the steps of an overview.

    A column has the steps of the other run from its first step to its last; where there are none,
    or the other run lacks a site, nothing was observed. Sites have the number of channels that they
    have in the other run; the rest of their description is that of the overview.

    name: of the other run, for a progress bar.
    """
    firsts = np.array([view.steps[first] for first, _ in view.spans])
    lasts = [view.steps[end - 1] for _, end in view.spans]
    known, rows = other.steps, Rows()
    columns: dict[int, list[Read]] = defaultdict(list)
    for _, read in zip(track(known, f"reading {name}"), read_steps(other, rows), strict=False):
        t = int(np.searchsorted(firsts, read.step, side="right")) - 1
        if t >= 0 and read.step <= lasts[t]:
            columns[t].append(read)
    here = {(site.name, site.kind): s for s, site in enumerate(view.sites)}
    place = np.array([here.get(key, -1) for key in rows.keys], np.int64)
    width = view.moments.shape[2]
    moments = np.tile(np.array(state.IDENTITY[:width]), (*view.observed.shape, 1))
    tallies, observed = np.zeros_like(view.tallies), np.zeros_like(view.observed)
    recorded = np.zeros_like(view.recorded)
    died = np.full_like(view.dead, -1)
    for t, several in columns.items():
        read = merge_steps(several, len(rows.keys))
        at = place[read.rows]
        kept = at >= 0
        known_columns = min(width, read.moments.shape[1])
        moments[t, at[kept], :known_columns] = read.moments[kept, :known_columns]
        moments[t, at[kept], known_columns:] = np.nan
        tallies[t, at[kept]], observed[t, at[kept]] = read.tallies[kept], read.observed[kept]
        recorded[t, at[kept]], died[t, at[kept]] = read.recorded[kept], read.dead[kept]
    sites = list(view.sites)
    for s, channels in zip(place.tolist(), rows.channels.tolist(), strict=True):
        if s >= 0:
            sites[s] = sites[s]._replace(channels=channels)
    return replace(
        view,
        rank=other.rank,
        sites=tuple(sites),
        uneven=frozenset(int(place[row]) for row in rows.uneven if place[row] >= 0),
        moments=moments,
        tallies=tallies,
        observed=observed,
        recorded=recorded,
        dead=died,
    )
