"""What a rule says of tensors that come step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from support.samples import record_of
from torch import Tensor

from hookstats.records.record import StepRecord
from hookstats.rules import (
    Alert,
    Monitor,
    Rule,
)
from hookstats.stats.bins import LogBins


def records(
    tensors: Iterable[dict[tuple[str, str], Tensor]], **kwargs: Any
) -> Iterator[StepRecord]:
    """A record a step; the channels are the last dimension."""
    kwargs = {"bins": LogBins(), "channel_bins": None, **kwargs}
    for step, sites in enumerate(tensors):
        yield record_of({key: (x, x.dim() - 1) for key, x in sites.items()}, step, **kwargs)


def alerts(
    rule: Rule, tensors: Iterable[dict[tuple[str, str], Tensor]], **kwargs: Any
) -> list[Alert]:
    """What the rule says of the steps."""
    monitor = Monitor([rule])
    for record in records(tensors, **kwargs):
        monitor.examine(record)
    assert monitor.failures == {}
    return monitor.alerts
