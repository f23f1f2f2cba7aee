"""Rules about channels: dead ones, and saturated activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hookstats.insight.channels import MARGIN, saturation
from hookstats.insight.layers import per_tensor
from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.rules.rule import Alert, Rule, at_least, fraction


@dataclass(frozen=True, kw_only=True)
class DeadChannels(Rule):
    """Many channels are zero in all values of the last steps: of an output, or of its gradient.

    A channel is dead after `steps` recorded steps, and `values` values, of zeros and nothing else
    (so that small batches do not make it so). In an output it tells nothing, as behind a ReLU that
    never opens; in a gradient the channel learns nothing. An alert takes `share` of the tensor's
    channels, and two at least; its value is the share, its channel the first dead one. Where
    gradients are watched, outputs without one are left out: inputs may have constant zeros.
    """

    name: ClassVar[str] = "dead channels"

    share: float = 0.5
    steps: int = 10
    values: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share")
        at_least(self, 1, "steps", "values")

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        dead = (history.dead_steps >= self.steps) & (history.dead_values >= self.values)
        rows = np.flatnonzero(dead)
        where = np.searchsorted(record.offsets, rows, "right") - 1
        kinds = {kind for _, kind in record}
        gradients = any(kind.startswith("grad_output") for kind in kinds)
        for site, first, count in zip(
            *np.unique(where, return_index=True, return_counts=True), strict=True
        ):
            info = record.sites[site]
            if count < max(2, self.share * info.channels):
                continue
            if info.kind.startswith("output"):
                if gradients and (info.name, f"grad_{info.kind}") not in record:
                    continue
                what = "tell nothing"
            elif info.kind.startswith("grad_output"):
                what = "learn nothing"
            else:
                continue
            channel = int(rows[first] - record.offsets[site])
            yield self.alert(
                record,
                int(site),
                f"has {count} dead channels of {info.channels}, channel {channel} the first: zero "
                f"in all values of {self.steps} steps or more, they {what}",
                count / info.channels,
                channel,
            )


@dataclass(frozen=True, kw_only=True)
class Saturation(Rule):
    """An output sits at its bounds, where a tanh or a clamp passes hardly any gradient on.

    At least `share` of its values are within 1/16 of its greatest magnitude
    (`insight.saturation`), and it has values that near of both signs: of one bound only, as a
    sigmoid's, nothing tells a saturated layer from a classifier that is sure of itself. The alert's
    value is the share, its channel the one with the greatest rms.
    """

    name: ClassVar[str] = "saturation"

    share: float = 0.8
    patience: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share")

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        tensors = history.tensors
        near = (1 - MARGIN) * tensors.amax
        both = (-tensors.min >= near) & (tensors.max >= near)
        # Below this rms no histogram can show so large a share.
        possible = both & (tensors.rms >= near * self.share**0.5)
        sites = [
            i
            for i in possible.nonzero().flatten().tolist()
            if record.sites[i].kind.startswith("output")
        ]
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
                f"{tensors.amax[site].item():.3g} or {-tensors.amax[site].item():.3g}, "
                f"most in channel {channel}",
                share,
                channel,
            )
