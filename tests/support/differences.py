"""compare(): where two step records differ."""

from __future__ import annotations

import numpy as np

from hookstats.records.difference import Comparison, Side, differences
from hookstats.records.keys import InOrder, Key
from hookstats.records.record import StepRecord


def compare(a: StepRecord, b: StepRecord, rtol: float = 0.0) -> Comparison:
    """`differences` of one step."""
    numbers = {key: i for i, key in enumerate(InOrder((a, b)))}
    return differences([a.step], list(numbers), _side(a, numbers), _side(b, numbers), rtol)


def _side(record: StepRecord, numbers: dict[Key, int]) -> Side:
    return Side(
        np.array([numbers[key] for key in record], np.int64),
        np.array([site.channels for site in record.sites], np.int64),
        np.array([site.dtype for site in record.sites], object),
        record.observed,
        record.tensors,
        record.channels,
        record.bins,
        record.channel_bins,
    )
