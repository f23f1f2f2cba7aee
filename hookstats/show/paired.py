"""paired(): the whole tensors of another run, in the columns and rows of an overview."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from hookstats.runs.run import Run
from hookstats.show.overview import Overview, Read, Rows, merge_steps, placed, read_steps
from hookstats.show.progress import track


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
    merged = {t: merge_steps(several, len(rows.keys)) for t, several in columns.items()}
    sites = list(view.sites)
    for s, channels in zip(place.tolist(), rows.channels.tolist(), strict=True):
        if s >= 0:
            sites[s] = sites[s]._replace(channels=channels)
    return replace(
        view,
        rank=other.rank,
        sites=tuple(sites),
        uneven=frozenset(int(place[row]) for row in rows.uneven if place[row] >= 0),
        **placed(merged, place, view.observed.shape),
    )
