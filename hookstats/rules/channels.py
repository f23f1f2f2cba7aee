"""Rules about channels: dead ones, and dropouts that leave few alive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64
from hookstats.rules.history import Flags, History, Sites
from hookstats.rules.rule import Rule, at_least, fraction


@dataclass(frozen=True, kw_only=True)
class DeadChannels(Rule):
    """Many channels of an output died together, or were dead from the start.

    A channel is dead in a step if all its finite values are zero (`insight.dead`). The rule counts
    a channel that was dead in `steps` recorded steps in a row, with `values` zeros or more in all,
    so that channels do not look dead because batches are small. A dead channel carries no signal,
    as behind a ReLU that never opens. A warning is given if `share` of the tensor's channels, and
    at least four, died within three steps, or `never` of them were never alive; a note if so many
    died one by one, as units of sound models do, or `few` of them where a layer has `width`
    channels or more. There is a note, too, where the channels that live are nearly always zero: so
    sparse codes are. The alert's value is the share of the counted channels, its channel the first
    of them; the message also says how many channels are dead in this step, as tables and reports
    count them. If gradients are watched, outputs without a gradient are left out: inputs may have
    channels that are always zero.
    """

    name: ClassVar[str] = "dead channels"
    advice: ClassVar[str] = "lower the learning rate, look at the bias, try a leaky activation"

    share: float = fraction(0.5)
    never: float = fraction(0.7)
    few: float = fraction(0.2)
    width: int = at_least(1, 12)
    steps: int = at_least(1, 10)
    values: int = at_least(1, 1024)
    unused: int = at_least(1, 50)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        for site in np.flatnonzero(history.sites.choices).tolist():
            rows = slice(*record.offsets[site : site + 2])
            streaks = history.dead_steps[rows]
            unused = np.flatnonzero(streaks >= self.unused).tolist()
            if unused:
                share, first = len(unused) / len(streaks), unused[0]
                says = (
                    f"have left out {len(unused)} of {len(streaks)} values ({share:.0%}) for "
                    f"{self.unused} steps or more; the first is {first}"
                )
                helps = "balance the router, or give unused codes a new start"
                since = int(history.dead_since[rows][unused].min())
                yield self.alert(
                    record, site, says, share, first, "note", since=since, advice=helps
                )
        found = (history.dead_steps >= self.steps) & (history.dead_values >= self.values)
        found &= history.dead
        if not found.any():
            return
        channels = history.sites.channels
        counts, dead_channels = (
            np.diff(np.searchsorted(np.flatnonzero(flags), record.offsets))
            for flags in (found, history.dead)
        )
        many = counts >= np.maximum(4, self.share * channels)
        some = (channels >= self.width) & (counts >= np.maximum(2, self.few * channels))
        for site in np.flatnonzero((many | some) & history.sites.once(_told)).tolist():
            rows = slice(*record.offsets[site : site + 2])
            places = np.flatnonzero(found[rows])
            streaks = history.dead_steps[rows][places]
            together = _together(streaks)
            share = self.never if streaks[together].max() == history.pushed else self.share
            least = max(4, share * int(channels[site]))
            is_fault = len(together) >= least and not (
                _is_sparse(history, rows) or _was_never_on(history, site, streaks)
            )
            first, dead, count = int(places[0]), int(dead_channels[site]), len(places)
            those = "their values" if dead == count else f"the values of {count} of them"
            since = int(history.dead_since[rows][places[together]].min())
            yield self.alert(
                record,
                site,
                f"has {dead} dead channels of {channels[site]}, the first is channel {first}: "
                f"all {those} have been zero for {self.steps} steps or more, so they carry no "
                "signal",
                count / int(channels[site]),
                first,
                "warning" if is_fault else "note",
                since=since,
            )


def _together(steps: Int64) -> Int64:
    """Of channels that have been dead for so many steps: the most that died within three."""
    counts = [np.flatnonzero((steps >= n) & (steps <= n + 2)) for n in np.unique(steps)]
    return max(counts, key=len)


def _is_sparse(history: History, rows: slice) -> bool:
    """Whether the channels that live are nearly always zero, too."""
    lives = ~history.dead[rows]
    zeros, count = (history.channels(name)[rows][lives].sum() for name in ("zero", "count"))
    return bool(zeros > 0.9 * count)


def _was_never_on(history: History, site: int, streaks: Int64) -> bool:
    """Whether an output that is no activation's has always been zero in all channels, and the loss
    depends on what runs before it: a branch that is switched off, and no layer that died."""
    if re.search("LU|Threshold|Hardtanh", history.type_of(site)):
        return False
    if len(streaks) < history.sites.channels[site] or streaks.min() < history.pushed:
        return False
    before = history.sites.once(_told)[:site]
    at = history.sites.at
    named = (history.sites.sites[i].name for i in np.flatnonzero(before).tolist())
    return any(history.rms[at[name, "grad_output"]] > 0 for name in named)


def _told(sites: Sites) -> Flags:
    """bool [S]: the outputs, if gradients are watched those with one."""
    outputs, gradients = sites.of_kind("output"), sites.of_kind("grad_output")
    if not gradients.any():
        return outputs
    named = zip(sites.sites, sites.kinds, strict=True)
    has = [(site.name, kind.gradient) in sites.at for site, kind in named]
    found: Flags = outputs & np.array(has, bool)
    return found


@dataclass(frozen=True, kw_only=True)
class Dropout(Rule):
    """A dropout drops nearly all values.

    Its probability is `share` or more. Half is usual in hidden layers, and less at inputs
    (Srivastava et al., "Dropout", 2014). So it is where the share to keep is given for the share to
    drop. The alert's value is the probability.
    """

    name: ClassVar[str] = "dropout"
    advice: ClassVar[str] = "give Dropout the share to drop, not the share to keep"

    share: float = fraction(0.85)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > 1:
            return
        for name, share in history.setup.dropouts.items():
            site = history.sites.at.get((name, "output"))
            if share >= self.share and site is not None:
                yield self.alert(record, site, f"drops {share:.0%} of what enters it", share)
