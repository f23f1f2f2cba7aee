"""Loads: how evenly a step uses experts or codes, as scalars of its record."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hookstats.records.keys import CHOICES
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64
from hookstats.stats.state import COUNT, MEAN

LOAD = "load_entropy/"
"""How the names of the scalars begin, before the name of a router or of a list of experts: the
entropy of the shares in nats, 0 where one has all, log(n) where all n have the same."""


class Loads:
    """Finds the scalars of each record.

    A list of modules is one of experts if these give matrices with different numbers of rows, or
    some of them none, and a module beside the list, the router, gives as many channels as the list
    has modules.
    """

    def __init__(self, lists: Mapping[str, int]) -> None:
        """lists: of modules of one type, their names, and how many modules each has."""
        self._lists = lists
        self._uneven: set[str] = set()  # the lists that are known for experts
        self._sites: tuple[SiteInfo, ...] = ()
        self._chosen: list[int] = []
        self._experts: dict[str, list[int]] = {}

    def __call__(self, record: StepRecord) -> dict[str, float]:
        """The scalars of a record, by name."""
        if record.sites is not self._sites:
            self._place(record.sites)
        shares = {}
        for site in self._chosen:
            rows = slice(*record.offsets[site : site + 2])
            shares[record.sites[site].name] = record.moments[rows, MEAN]
        counts = record.tensors.tallies[COUNT]
        for name, sites in self._experts.items():
            rows_of = np.array([counts[site] / record.sites[site].channels for site in sites])
            if len(sites) < self._lists[name] or np.ptp(rows_of):
                self._uneven.add(name)
            if name in self._uneven:
                shares[name] = rows_of
        return {f"{LOAD}{name}": _entropy(given) for name, given in shares.items()}

    def _place(self, sites: tuple[SiteInfo, ...]) -> None:
        """Find the choices, and of each list with a router the first output of each module."""
        self._sites, self._chosen, self._experts = sites, [], {}
        routers: set[tuple[str, int]] = set()  # what they are in, and their numbers of channels
        firsts: dict[str, dict[str, int]] = {}
        for i, site in enumerate(sites):
            if site.kind.partition("[")[0] == CHOICES:
                self._chosen.append(i)
            if site.kind != "output":
                continue
            parts = site.name.split(".")
            routers.add((".".join(parts[:-1]), site.channels))
            for depth in range(1, len(parts)):
                name = ".".join(parts[:depth])
                if name in self._lists and len(site.shape) == 2:
                    firsts.setdefault(name, {}).setdefault(parts[depth], i)
        for name, members in firsts.items():
            if (name.rpartition(".")[0], self._lists[name]) in routers:
                self._experts[name] = list(members.values())


def _entropy(loads: Float64) -> float:
    some = loads[loads > 0] / loads.sum()
    return float(-(some * np.log(some)).sum())
