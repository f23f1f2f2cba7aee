"""Messages: a record, or a part of one, as bytes that go from rank to rank, in Arrow's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64
from hookstats.records.summands import Summand
from hookstats.runs.decode import DESCRIBED, decode, sites_of
from hookstats.runs.encode import encode, encode_sites, schema_of
from hookstats.runs.format import require_pyarrow
from hookstats.stats.bins import Bins


class Message(NamedTuple):
    """Some sites of a record."""

    record: StepRecord
    places: Int64
    """int64 [S]: the sites' places in the record that they are of."""
    summands: Sequence[Summand] = ()
    """What the rank adds to gradients that are sums over ranks."""
    places_of_sums: Sequence[int] = ()
    """Where the sums would be in the record."""


def to_bytes(message: Message) -> NDArray[np.uint8]:
    """The message, uint8 [bytes]."""
    pa = require_pyarrow()
    # With the numbers of channels, as rows may be of whole tensors.
    batch = encode([message.record], schema_of(message.record, detail=True))
    batch = batch.append_column("place", pa.array(message.places))
    stream = pa.BufferOutputStream()
    for each in (batch, *([_encode_summands(message)] if message.summands else ())):
        with pa.ipc.new_stream(stream, each.schema) as writer:
            writer.write_batch(each)
    return np.frombuffer(stream.getvalue(), np.uint8)


def _encode_summands(message: Message) -> Any:
    """The summands, a record batch; values as bytes."""
    pa = require_pyarrow()
    summands = message.summands
    described = encode_sites(tuple(summand.info for summand in summands))
    values = [s.values.contiguous().view(-1).view(torch.uint8).numpy() for s in summands]
    columns = {
        **described,
        "channels": pa.array([s.info.channels for s in summands], pa.int64()),
        "place": pa.array(message.places_of_sums, pa.int64()),
        "ranks": pa.array([list(s.ranks) for s in summands], pa.list_(pa.int32())),
        "is_mean": pa.array([s.is_mean for s in summands], pa.bool_()),
        "dtype_of_values": pa.array([str(s.values.dtype).split(".")[1] for s in summands]),
        "values": pa.array([each.tobytes() for each in values], pa.large_binary()),
    }
    return pa.record_batch(columns)


def _decode_summands(table: Any) -> list[Summand]:
    named = table.select([name for name in DESCRIBED if name in table.column_names])
    infos = sites_of(named, table.column("channels").to_numpy())
    names = "values", "dtype_of_values", "ranks", "is_mean"
    others = (table.column(name).to_pylist() for name in names)
    return [
        Summand(info, _tensor(info, dtype, values), tuple(ranks), is_mean)
        for info, values, dtype, ranks, is_mean in zip(infos, *others, strict=True)
    ]


def _tensor(info: SiteInfo, dtype: str, values: bytes) -> Tensor:
    content = torch.frombuffer(bytearray(values), dtype=torch.uint8)
    of_values: torch.dtype = getattr(torch, dtype)
    return content.view(of_values).view(info.shape)


def from_bytes(
    content: NDArray[np.uint8], step: int, bins: Bins | None, channel_bins: Bins | None
) -> Message:
    """The message of a record of this step, with histograms on these bins."""
    pa = require_pyarrow()
    stream = pa.BufferReader(pa.py_buffer(content))
    table = pa.ipc.open_stream(stream).read_all().combine_chunks()
    rank = table.column("rank")[0].as_py() if table.num_rows else None
    group = decode(table, channel_bins)
    moments, tallies = group.state(slice(None))
    record = StepRecord(
        step=step,
        rank=rank,
        sites=sites_of(group.described, np.diff(group.offsets)),
        observed=group.observed,
        offsets=group.offsets,
        moments=moments,
        tallies=tallies,
        bins=bins,
        hist=group.hist,
        channel_bins=channel_bins,
        channel_hist=group.channel_hist,
    )
    places = table.column("place").to_numpy()
    if stream.tell() == len(content):
        return Message(record, places)
    sums = pa.ipc.open_stream(stream).read_all().combine_chunks()
    return Message(record, places, _decode_summands(sums), sums.column("place").to_pylist())
