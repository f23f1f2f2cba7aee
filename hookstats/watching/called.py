"""Call: a sink while the flush thread calls it; what sinks are named by, and what they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from hookstats.records.record import StepRecord
from hookstats.rules.monitor import Monitor

Sink = Callable[[StepRecord], object]
"""What gets every record; it may have a `close`, and a `write_scalars`."""


class Call(NamedTuple):
    """A call of a sink that has not returned yet."""

    sink: Sink
    what: str
    since: float


def name_of(sink: Sink) -> str:
    """What messages call a sink."""
    return f"sink {getattr(sink, '__qualname__', None) or repr(sink)}"


def takes_scalars(sink: Sink) -> bool:
    """Whether a sink gets the scalars of each step, too."""
    return callable(getattr(sink, "write_scalars", None))


def calls_with(sink: Sink, records: Sequence[StepRecord]) -> Sequence[Callable[[], object]]:
    """The calls by which a sink gets records, one each; rules look at all of them in the first."""
    if isinstance(sink, Monitor):
        return [partial(next, sink.each_of(records), None)] * len(records)
    return [partial(sink, record) for record in records]
