"""Messages: a record, or a part of one, as bytes that go from rank to rank, in Arrow's format."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Int64
from hookstats.runs.decode import decode, sites_of
from hookstats.runs.encode import encode
from hookstats.runs.format import require_pyarrow
from hookstats.stats.bins import Bins


class Message(NamedTuple):
    """Some sites of a record."""

    record: StepRecord
    places: Int64
    """int64 [S]: the sites' places in the record that they are of."""


def to_bytes(message: Message) -> NDArray[np.uint8]:
    """The message, uint8 [bytes]."""
    pa = require_pyarrow()
    batch = encode([message.record])
    batch = batch.append_column("place", pa.array(message.places))
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(stream.getvalue(), np.uint8)


def from_bytes(
    content: NDArray[np.uint8], step: int, bins: Bins | None, channel_bins: Bins | None
) -> Message:
    """The message of a record of this step, with histograms on these bins."""
    pa = require_pyarrow()
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all().combine_chunks()
    rank = table.column("rank")[0].as_py() if table.num_rows else None
    group = decode(table, channel_bins)
    record = StepRecord(
        step=step,
        rank=rank,
        sites=sites_of(group.described, np.diff(group.offsets)),
        observed=group.observed,
        offsets=group.offsets,
        moments=group.moments,
        tallies=group.tallies,
        bins=bins,
        hist=group.hist,
        channel_bins=channel_bins,
        channel_hist=group.channel_hist,
    )
    return Message(record, table.column("place").to_numpy())
