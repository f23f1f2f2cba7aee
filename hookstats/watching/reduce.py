"""Reduce, Exchange: ranks merge their records while they train, over a separate process group.

Each rank gathers the whole tensors of all ranks and merges them. The gathering runs on the flush
threads, beside the training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import NamedTuple

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from hookstats.records.alerts import SCALAR, Alert
from hookstats.records.norms import GRADIENT_NORM, gradient_norm
from hookstats.records.ranks import Merger
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.replicas import CHECKSUM, UnequalReplicas, checksums, first_unequal
from hookstats.stats.arguments import check_integer


class _Message(NamedTuple):
    """What a rank tells the others."""

    line: int
    """`Exchange.line`."""
    wanted: int
    """`Exchange.wanted`."""
    record: StepRecord
    """Its whole tensors."""


@dataclass(frozen=True)
class Reduce:
    """How `watch` merges the records of all ranks while they train.

    In each merged step, `Watch.latest`, sinks and rules get the tensors of the whole model, each as
    one channel, on every rank of the mesh. Channels stay with their rank: `out` has each rank's
    record of every recorded step.

    Args:
        mesh: the ranks that merge; None for all. Each of its ranks must watch with it, and call
            `Watch.set_step` where the others do.
        every: recorded steps that are multiples of it are merged.
        timeout: seconds to wait for the other ranks. If one does not answer, merging ends with a
            warning and an alert, a note of "reduce"; training and recording go on, with the records
            of each rank.

    Raises:
        ValueError: an argument is wrong.
    """

    mesh: DeviceMesh | None = None
    every: int = 1
    timeout: float = 10.0

    def __post_init__(self) -> None:
        if not (self.mesh is None or isinstance(self.mesh, DeviceMesh)):
            raise ValueError(f"mesh = {self.mesh!r}: expected a DeviceMesh or None")
        object.__setattr__(self, "every", check_integer("every", self.every, 1))
        if not (isinstance(self.timeout, (int, float)) and 0 < self.timeout < 1e6):
            raise ValueError(f"timeout = {self.timeout!r}: expected seconds, more than 0")


class Exchange:
    """A rank's end of the merging.

    Raises:
        ValueError: torch.distributed is not initialised.
        RuntimeError: a rank of the mesh has no exchange within the timeout.
    """

    def __init__(self, reduce: Reduce) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError("reduce: expected torch.distributed to be initialised before watch()")
        self.reduce = reduce
        self.notify: Callable[[Alert], object] = lambda alert: None
        """Called when a rank does not answer."""
        ranks = None if reduce.mesh is None else reduce.mesh.mesh.flatten().tolist()
        # A separate group: no collective of the training waits behind these, and ranks outside of
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
        self._ranks = distributed.get_world_size(self._group)
        self._merge = Merger()
        self._sites: list[tuple[SiteInfo, ...]] = [()] * self._ranks
        self._unequal = False
        """Whether it was said that replicas differ."""
        self.wanted = 0
        """The k that this rank wants, see `Schedule`."""
        self.agreed: deque[tuple[int, int]] = deque(maxlen=64)
        """By step that was merged, the greatest k that any rank wanted; oldest first."""
        self.line = 0
        """How often the training gave a step's number itself, as where it goes back: on all ranks
        alike, so that a step is merged with steps of the same line."""

    def is_due(self, step: int) -> bool:
        """Whether a recorded step is to be merged."""
        return step % self.reduce.every == 0

    def __call__(self, record: StepRecord) -> StepRecord | None:
        """The record of the whole model; None if other ranks did not record the step.

        Raises:
            RuntimeError: a rank does not answer.
        """
        try:
            return self._merged(record)
        except Exception as error:
            self.notify(_lost(record, error))
            raise

    def _merged(self, record: StepRecord) -> StepRecord | None:
        tensors = replace(record.without_channels(), channel_bins=None, scalars={})
        messages = self._gather(_Message(self.line, self.wanted, tensors))
        if messages is None:
            return None
        self.agreed.append((record.step, max(message.wanted for message in messages)))
        records = [self._with_known_sites(i, message.record) for i, message in enumerate(messages)]
        if not self._unequal and (unequal := first_unequal(chain(*map(checksums, records)))):
            self._unequal = True
            self.notify(_parted(unequal))
        merged = self._merge(records)
        norm = gradient_norm(merged)
        own = {} if norm is None else {GRADIENT_NORM: norm}
        merged.complete({**record.scalars, **own})
        return merged

    def _gather(self, own: _Message) -> list[_Message] | None:
        """The messages of all ranks about a step; None if not all recorded it."""
        at = own.line, own.record.step
        while True:
            messages: list[_Message] = [own] * self._ranks
            distributed.all_gather_object(messages, own, group=self._group)
            found = [(message.line, message.record.step) for message in messages]
            if at < max(found):
                return None
            if at == min(found):
                return messages

    def _with_known_sites(self, rank: int, record: StepRecord) -> StepRecord:
        """The record with the site objects of the step before, by which the merger knows them."""
        if record.sites != self._sites[rank]:
            self._sites[rank] = record.sites
        return replace(record, sites=self._sites[rank])


def _parted(unequal: UnequalReplicas) -> Alert:
    """The alert that says that a rank trains other weights than the others."""
    return Alert(
        step=unequal.step,
        rank=unequal.rank,
        site=unequal.name,
        kind=CHECKSUM,
        channel=None,
        rule="replicas",
        value=float(unequal.rank),
        message=f"replicas: {unequal}",
        severity="error",
        advice="look for a rank without the broadcast, with another seed, or for bad hardware",
    )


def _lost(record: StepRecord, error: Exception) -> Alert:
    """The alert that says that the ranks do not merge any more; no harm to the training."""
    of = f", rank {record.rank}" if record.rank else ""
    why = str(error).partition("\n")[0]
    says = f"reduce: step {record.step}{of}: the ranks do not merge their records any more ({why})"
    message = f"{says}; the run is merged when it is read"
    step, rank = record.step, record.rank
    return Alert(step, rank, "", SCALAR, None, "reduce", math.nan, message, "note")
