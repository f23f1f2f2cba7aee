"""Reduce, Exchange: ranks merge their records while they train, over a process group of their own.

Three collectives a step, whatever the number of layers: sizes; each rank's share of the sites from
all ranks; the merged shares to all ranks. They run on the flush threads, beside the training.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.alerts import SCALAR, Alert
from hookstats.records.norms import GRADIENT_NORM, gradient_norm
from hookstats.records.ranks import Merger
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.records.subset import subset
from hookstats.records.summands import Summand, Summands, added
from hookstats.records.tensors import of_tensors
from hookstats.runs.format import require_pyarrow
from hookstats.runs.message import Message, from_bytes, to_bytes
from hookstats.stats.arguments import check_integer
from hookstats.stats.histogram import Histogram

_SPARE = 1 << 16  # bytes by which a merged share may grow from one step to the next
_HEAD = 16  # bytes before a share: its length, and how many sums it lacks
_RANK = 1 << 32  # the place of a site: its rank times this, and its place in the rank's record


class _Heads(NamedTuple):
    """What all ranks know before they swap."""

    lost: Int64
    """[ranks]: the partial gradients of which a rank kept nothing."""
    before: Int64
    """[ranks]: the bytes of the last merged share of a rank."""
    sizes: Int64
    """[ranks, ranks]: the bytes that each rank sends to each."""


@dataclass(frozen=True)
class Reduce:
    """How `watch` merges the records of all ranks while they train.

    `Watch.latest`, sinks and rules then have the whole model, on every rank of the mesh, in each
    step that is merged. What is written to `out` stays each rank's own, for all recorded steps.

    Args:
        mesh: the ranks that merge; None for all. Each rank that is in it must watch with it, and
            call `Watch.set_step` where the others do.
        every: recorded steps that are multiples of it are merged.
        channels: whether channels are merged, or only whole tensors: 80 bytes a tensor.
        partial_bytes: gradients of which each rank has a summand (DTensor's `Partial`, as of norms
            under sequence parallelism) are added up, too, up to so many bytes of these a step and
            rank; 0 for none. They are copied when the optimizer steps. A step of which summands are
            missing, as there was no room for them, has neither these sums nor `grad_norm`.
        timeout: seconds to wait for the other ranks. Where one does not answer, merging ends with a
            warning and an alert, a note of "reduce"; training and recording go on, and each rank
            has its own records again.

    Raises:
        ValueError: an argument is wrong.
    """

    mesh: DeviceMesh | None = None
    every: int = 1
    channels: bool = True
    timeout: float = 10.0
    partial_bytes: int = 0

    def __post_init__(self) -> None:
        if not (self.mesh is None or isinstance(self.mesh, DeviceMesh)):
            raise ValueError(f"mesh = {self.mesh!r}: expected a DeviceMesh or None")
        object.__setattr__(self, "every", check_integer("every", self.every, 1))
        if not isinstance(self.channels, bool):
            raise ValueError(f"channels = {self.channels!r}: expected True or False")
        if not (isinstance(self.timeout, (int, float)) and 0 < self.timeout < 1e6):
            raise ValueError(f"timeout = {self.timeout!r}: expected seconds, more than 0")
        object.__setattr__(
            self, "partial_bytes", check_integer("partial_bytes", self.partial_bytes, 0)
        )


class Exchange:
    """A rank's end of the merging.

    Raises:
        ValueError: torch.distributed is not initialised.
        RuntimeError: a rank of the mesh has no exchange within the timeout.
        ImportError: pyarrow is not installed.
    """

    def __init__(self, reduce: Reduce) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError("reduce: expected torch.distributed to be initialised before watch()")
        require_pyarrow()
        self.reduce = reduce
        self.tell: Callable[[Alert], object] = lambda alert: None
        """Called when a rank does not answer."""
        self.sent = 0
        """The bytes that this rank has given to others."""
        ranks = None if reduce.mesh is None else reduce.mesh.mesh.flatten().tolist()
        # Of its own, so that no collective of the training waits behind these; ranks outside of
        # the mesh need not know of it.
        try:
            self._group = distributed.new_group(
                ranks,
                timeout=timedelta(seconds=reduce.timeout),
                backend="gloo",
                use_local_synchronization=True,
            )
        except RuntimeError as error:
            raise RuntimeError(
                f"reduce = {reduce}: a rank did not come within {reduce.timeout:g} s; expected all "
                "ranks of the mesh to call watch() with it"
            ) from error
        self._rank = distributed.get_rank(self._group)
        self._ranks = distributed.get_world_size(self._group)
        self._merge_shares, self._merge_ranks = Merger(), Merger()
        self.wanted = 1
        """The factor that this rank's budget wants, see `Budget`."""
        self.agreed: deque[tuple[int, int]] = deque(maxlen=64)
        """By step that was merged, the greatest factor that any rank wanted; oldest first."""
        self.line = 0
        """How often the training gave a step's number itself, as where it goes back: on all ranks
        alike, so that a step is merged with those of its own time."""
        self._merged_before = 0  # bytes of this rank's share of the last merged record

    def is_due(self, step: int) -> bool:
        """Whether a recorded step is to be merged."""
        return step % self.reduce.every == 0

    def adds_up(self, step: int) -> bool:
        """Whether the summands of gradients in a recorded step are to be added up."""
        return self.reduce.partial_bytes > 0 and self.is_due(step)

    def __call__(self, record: StepRecord, summands: Summands | None = None) -> StepRecord | None:
        """The record of the whole model; None if other ranks did not record the step.

        summands: what this rank adds to gradients that are sums over ranks.

        Raises:
            RuntimeError: a rank does not answer.
        """
        try:
            return self._merged(record, summands)
        except Exception as error:
            self.tell(_lost(record, error))
            raise

    def _merged(self, record: StepRecord, summands: Summands | None) -> StepRecord | None:
        own = record
        if not self.reduce.channels:
            empty = SparseCounts.empty(len(record.moments))
            own = of_tensors(replace(record, channel_bins=None, channel_hist=empty))
        summands = Summands() if summands is None else summands
        outgoing = self._shares(own, summands)
        heads = self._agree(record.step, summands.lost, outgoing)
        if heads is None:
            return None
        incoming = self._swap(outgoing, heads.sizes)
        share, lacking = self._merge(record, incoming)
        shares = self._gather(share, lacking + int(heads.lost.sum()), heads)
        return None if shares is None else self._whole(record, *shares)

    def _shares(self, record: StepRecord, summands: Sequence[Summand]) -> list[NDArray[np.uint8]]:
        """The sites of a record for each rank, which merges them."""
        infos = [*record.sites, *(summand.info for summand in summands)]
        owners = np.array([_owner(site.name, site.kind) for site in infos], np.int64)
        owners %= self._ranks
        return [
            _nothing() if not len(places) else _message(record, summands, places)
            for places in (np.flatnonzero(owners == rank) for rank in range(self._ranks))
        ]

    def _agree(self, step: int, lost: int, outgoing: Sequence[NDArray[np.uint8]]) -> _Heads | None:
        """What each rank says of itself; None if not all have the step."""
        shares = [len(share) for share in outgoing]
        own = self.line, step
        head = [*own, self.wanted, lost, self._merged_before, *shares]
        while True:
            heads = np.asarray(self._all_gather(torch.tensor(head, device="cpu")).numpy(), np.int64)
            steps = [(line, number) for line, number in heads[:, :2].tolist()]
            if own < max(steps):
                return None
            if min(steps) == own:
                self.agreed.append((step, int(heads[:, 2].max())))
                return _Heads(heads[:, 3], heads[:, 4], heads[:, 5:])

    def _swap(self, outgoing: Sequence[NDArray[np.uint8]], sizes: Int64) -> list[NDArray[np.uint8]]:
        """What each rank has for this one."""
        sent = np.concatenate(outgoing)
        counts = sizes[:, self._rank].tolist()
        received = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
        distributed.all_to_all_single(
            received,
            torch.from_numpy(sent),
            counts,
            [len(share) for share in outgoing],
            group=self._group,
        )
        self.sent += len(sent) - len(outgoing[self._rank])
        return np.split(received.numpy(), np.cumsum(counts)[:-1])

    def _merge(
        self, record: StepRecord, incoming: Sequence[NDArray[np.uint8]]
    ) -> tuple[Message | None, int]:
        """This rank's share of the sites, merged over all ranks, and how many sums it lacks."""
        found = [
            (rank, self._read(record, content))
            for rank, content in enumerate(incoming)
            if len(content)
        ]
        if not found:
            return None, 0
        of_all = added(summand for _, message in found for summand in message.summands)
        sums = [self._record_of(record, info, x) for info, x in of_all if x is not None]
        merged = self._merge_shares([*(message.record for _, message in found), *sums])
        places: dict[tuple[str, str], int] = {}
        for rank, message in found:
            infos = *message.record.sites, *(summand.info for summand in message.summands)
            mine = *message.places.tolist(), *message.places_of_sums
            for place, site in zip(mine, infos, strict=True):
                places.setdefault((site.name, site.kind), rank * _RANK + place)
        share = Message(merged, np.array([places[key] for key in merged], np.int64))
        return share, len(of_all) - len(sums)

    def _record_of(self, like: StepRecord, info: SiteInfo, x: Tensor) -> StepRecord:
        """The record of a sum, with the statistics that `like` has."""
        dim = info.channel_dim
        if not self.reduce.channels and info.channels > 1:
            info, dim = info._replace(channels=1, merged=info.channels), None
        bins = like.channel_bins if self.reduce.channels else None
        stats = channel_stats(x, dim, bins, step=like.step)
        whole = channel_stats(x, None, like.bins, step=like.step)
        return replace(
            like,
            sites=(info,),
            observed=np.ones(1, np.int64),
            offsets=np.array([0, info.channels], np.int64),
            moments=stats.moments.numpy(),
            tallies=stats.tallies.numpy(),
            hist=_counts(whole.hist, 1),
            channel_bins=bins,
            channel_hist=_counts(stats.hist, info.channels),
            scalars={},
        )

    def _gather(
        self, share: Message | None, lacking: int, heads: _Heads
    ) -> tuple[list[NDArray[np.uint8]], bool] | None:
        """The merged shares of all ranks, and whether any lacks a sum; None if one outgrew what it
        was given room for.

        All ranks know the room: the sum of what was merged is enough for any share, but most need
        no more than in the step before.
        """
        content = _nothing() if share is None else to_bytes(share)
        enough = heads.sizes.sum(axis=0) + _SPARE
        before = heads.before
        room = int(np.where(before > 0, np.minimum(before + _SPARE, enough), enough).max())
        padded = np.zeros(_HEAD + room, np.uint8)
        padded[:_HEAD] = np.array([len(content), lacking], np.int64).view(np.uint8)
        if len(content) <= room:
            padded[_HEAD : _HEAD + len(content)] = content
        gathered = self._all_gather(torch.from_numpy(padded)).numpy()
        self.sent += len(padded)
        self._merged_before = len(content)
        lengths, lacks = zip(
            *(each[:_HEAD].view(np.int64).tolist() for each in gathered), strict=True
        )
        if max(lengths) > room:
            return None
        shares = [
            each[_HEAD : _HEAD + length] for each, length in zip(gathered, lengths, strict=True)
        ]
        return shares, any(lacks)

    def _whole(
        self, record: StepRecord, shares: Sequence[NDArray[np.uint8]], lacks_sums: bool
    ) -> StepRecord:
        """The sites of all shares, in the order of the ranks and their records."""
        found = [self._read(record, content) for content in shares if len(content)]
        if not found:
            return replace(record, rank=None)
        whole = self._merge_ranks([message.record for message in found])
        order = np.argsort(np.concatenate([message.places for message in found]))
        scalars = dict(record.scalars)
        if lacks_sums:
            scalars.pop(GRADIENT_NORM, None)  # that of this rank's own gradients
        merged = replace(subset(whole, order), scalars=scalars)
        norm = None if lacks_sums else gradient_norm(merged)
        if norm is not None:
            merged.complete({**scalars, GRADIENT_NORM: norm})
        return merged

    def _read(self, record: StepRecord, content: NDArray[np.uint8]) -> Message:
        channel_bins = record.channel_bins if self.reduce.channels else None
        return from_bytes(content, record.step, record.bins, channel_bins)

    def _all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """[ranks, ...]"""
        gathered = torch.empty((self._ranks, *own.shape), dtype=own.dtype, device="cpu")
        distributed.all_gather(list(gathered.unbind()), own, group=self._group)
        return gathered


def _lost(record: StepRecord, error: Exception) -> Alert:
    """The alert that says that the ranks do not merge any more; no harm to the training."""
    of = f", rank {record.rank}" if record.rank else ""
    why = str(error).partition("\n")[0]
    says = f"reduce: step {record.step}{of}: the ranks do not merge their records any more ({why})"
    message = f"{says}; the run is merged when it is read"
    step, rank = record.step, record.rank
    return Alert(step, rank, "", SCALAR, None, "reduce", math.nan, message, "note")


def _owner(name: str, kind: str) -> int:
    """A number that is the same on all ranks, whatever sites they have."""
    return zlib.crc32(f"{name}\0{kind}".encode(errors="surrogatepass"))


def _message(record: StepRecord, summands: Sequence[Summand], places: Int64) -> NDArray[np.uint8]:
    """What is at these places, summands after all sites."""
    sites = places[places < len(record)]
    sums = [int(place) for place in places if place >= len(record)]
    chosen = [summands[place - len(record)] for place in sums]
    return to_bytes(Message(subset(record, sites), sites, chosen, sums))


def _counts(hist: Histogram | None, rows: int) -> SparseCounts:
    """The histograms of `rows` channels; without counts where there are none."""
    return (
        SparseCounts.empty(rows)
        if hist is None
        else SparseCounts.from_dense(hist.slot_counts.numpy())
    )


def _nothing() -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8)
