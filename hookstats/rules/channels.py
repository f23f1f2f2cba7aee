"""Rules about channels: dead ones, and saturated activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hookstats.insight.channels import MARGIN, saturation
from hookstats.insight.layers import per_tensor
from hookstats.records.alerts import Alert
from hookstats.records.keys import finder
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.rules.steps import Flags, Sites, Steps, in_steps
from hookstats.stats.derived import amax
from hookstats.stats.merge import reduce_runs


@dataclass(frozen=True, kw_only=True)
class DeadChannels(Rule):
    """Many channels of an output, or of the gradient of an output, are dead for many steps.

    A channel is dead in a step if all its finite values are zero (`insight.dead`). The rule counts
    a channel that was dead in `steps` recorded steps in a row, with `values` zeros or more in all,
    so that channels do not look dead because batches are small. A dead channel of an output carries
    no signal, as behind a ReLU that never opens; a dead channel of a gradient receives none. A
    warning is given if the counted channels are at least `share` of the tensor's channels, and at
    least two; a note if they are at least `few` of the channels of an output, where a layer has
    `width` channels or more, as some units of narrow layers often die. The alert's value is their
    share, its channel the first of them; the message also says how many channels are dead in this
    step, as tables and reports count them. If gradients are watched, outputs without a gradient are
    left out: inputs may have channels that are always zero.
    """

    name: ClassVar[str] = "dead channels"
    advice: ClassVar[str] = "lower the learning rate, look at the bias, try a leaky activation"

    share: float = 0.5
    few: float = 0.2
    width: int = 12
    steps: int = 10
    values: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share", "few")
        at_least(self, 1, "width", "steps", "values")

    def by_site(self, steps: Steps) -> NDArray[np.int8]:
        rows, dead_steps, dead_values = steps.lasting
        lasting = (dead_steps >= self.steps) & (dead_values >= self.values)
        channels = steps.sites.channels
        if not lasting.any():
            return np.zeros((len(steps), len(channels)), np.int8)
        found = np.zeros(steps.dead.shape, bool)
        found[:, rows] = lasting & steps.dead[:, rows]
        return self._levels(steps.in_sites(found), steps.sites)

    def _levels(self, counts: Int64, sites: Sites) -> NDArray[np.int8]:
        """By the number of counted channels of each site, [..., S]: 2 for a warning, 1 for a note,
        0 for nothing."""
        outputs, gradients = sites.of_kind("output"), sites.of_kind("grad_output")
        told = outputs | gradients
        if gradients.any():
            told &= gradients | sites.once(_has_gradient)
        channels = sites.channels
        many = told & (counts >= np.maximum(2, self.share * channels))
        wide = told & outputs & (channels >= self.width)
        some = wide & (counts >= np.maximum(2, self.few * channels))
        level: NDArray[np.int8] = many.astype(np.int8) + (many | some)
        return level

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        lasting = (history.dead_steps >= self.steps) & (history.dead_values >= self.values)
        found = history.dead & lasting
        rows = np.flatnonzero(found)
        if not len(rows):
            return
        counts, dead_channels = (
            reduce_runs(np.add, flags.astype(np.int64), record.offsets, 0)
            for flags in (found, history.dead)
        )
        levels = self._levels(counts, history.sites)
        sites = np.flatnonzero(levels)
        firsts = rows[np.searchsorted(rows, record.offsets[sites])] - record.offsets[sites]
        # As plain numbers, which are faster to put into words than NumPy's.
        of_sites = (sites, firsts, levels[sites], counts[sites], dead_channels[sites])
        for site, first, level, count, dead in zip(*(x.tolist() for x in of_sites), strict=True):
            channels = record.sites[site].channels
            what = "receive no gradient" if history.gradient[site] else "carry no signal"
            those = "their values" if dead == count else f"the values of {count} of them"
            yield self.alert(
                record,
                site,
                f"has {dead} dead channels of {channels}, the first is channel {first}: "
                f"all {those} have been zero for {self.steps} steps or more, so they {what}",
                count / channels,
                first,
                "warning" if level == 2 else "note",
            )


def _has_gradient(sites: Sites) -> Flags:
    """bool [S]: whether a gradient of each site is a site, too."""
    find = finder([(site.name, site.kind) for site in sites.sites])
    named = zip(sites.sites, sites.kinds, strict=True)
    return np.array([find(site.name, kind.gradient) is not None for site, kind in named], bool)


@dataclass(frozen=True, kw_only=True)
class Dropout(Rule):
    """A dropout drops nearly all values.

    At least `share` of what enters it leaves as zero; what was zero before, in the output of the
    layer before it, does not count. Half is usual in hidden layers, and less at inputs (Srivastava
    et al., "Dropout", 2014). So it is where the share to keep is given for the share to drop. The
    alert's value is the share.
    """

    name: ClassVar[str] = "dropout"
    advice: ClassVar[str] = "give Dropout the share to drop, not the share to keep"

    share: float = 0.85
    patience: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share")

    def suspects(self, steps: Steps) -> Flags:
        return steps.all if steps.outputs_of.get("Dropout") else steps.none

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        counts = history.columns("count")
        with np.errstate(invalid="ignore"):
            zeros = history.columns("zero") / counts
        for site in history.outputs_of.get("Dropout", ()):
            before = zeros[site - 1] if site and counts[site - 1] == counts[site] else 0.0
            if counts[site] < 256 or not zeros[site] > before:
                continue
            share = float(1 - (1 - zeros[site]) / (1 - before))
            if share >= self.share:
                yield self.alert(record, site, f"drops {share:.0%} of what enters it", share)


@dataclass(frozen=True, kw_only=True)
class Saturation(Rule):
    """An output sits at its bounds, where a tanh or a clamp passes hardly any gradient on.

    At least `share` of the output's values are within 1/16 of its greatest magnitude
    (`insight.saturation`), and there are such values of both signs. With one bound only, such as a
    sigmoid's, a saturated layer cannot be told from a classifier that is sure of itself. The
    alert's value is the share, its channel the one with the greatest rms.
    """

    name: ClassVar[str] = "saturation"
    advice: ClassVar[str] = "scale inputs and weights down, normalise before it"

    share: float = 0.8
    patience: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share")

    def suspects(self, steps: Steps) -> Flags:
        magnitude = amax(steps.columns)
        near = (1 - MARGIN) * magnitude
        both = (-steps.columns("min") >= near) & (steps.columns("max") >= near)
        possible = both & (steps.rms >= near * self.share**0.5)
        return in_steps(possible & steps.sites.of_kind("output"))

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        magnitude = amax(history.columns)
        near = (1 - MARGIN) * magnitude
        both = (-history.columns("min") >= near) & (history.columns("max") >= near)
        # Below this rms no histogram can show so large a share.
        possible = both & (history.rms >= near * self.share**0.5)
        sites = [i for i in np.flatnonzero(possible).tolist() if history.plain_kinds[i] == "output"]
        if not sites:
            return
        for site, share in zip(sites, saturation(per_tensor(record, sites)).tolist(), strict=True):
            if share < self.share:
                continue
            info = record.sites[site]
            channel = int(record[info.name, info.kind].rms.nan_to_num(0.0).argmax())
            yield self.alert(
                record,
                site,
                f"is saturated: {share:.1%} of its values are within 1/16 of "
                f"{magnitude[site]:.3g} or {-magnitude[site]:.3g}, "
                f"most of all in channel {channel}",
                share,
                channel,
            )
