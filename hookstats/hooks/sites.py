"""Site: one watched tensor of a model, its place in the arena and what became of it."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hookstats._torch import DisableTorchFunction, has_storage, is_plain
from hookstats.arena.arena import Accumulator, Arena
from hookstats.arena.graph_states import AWAITED, FOLDED, GraphSite, GraphState
from hookstats.hooks.channels import Rule
from hookstats.hooks.coverage import Counts, SiteCoverage
from hookstats.hooks.readable import local_part, short, unreadable
from hookstats.records import reasons
from hookstats.records.record import SiteInfo
from hookstats.stats.reference import DTYPES

MAX_LEAVES = 1024
"""The most tensors of one kind of a module that are told apart: keys that change from call to call,
such as the names of images, would otherwise fill the memory with sites."""

if TYPE_CHECKING:
    from hookstats import _hooks


class _Place(NamedTuple):
    """Where the last tensor was folded in; a tensor like it needs no further look."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    accumulator: Accumulator
    channel_dim: int | None


class Site:
    """One tensor that a model computes or owns: folds the tensor in, or skips it with a reason.

    Callers hold the arena's lock, except for `receive` and `refuse`.
    """

    __slots__ = (
        "__weakref__",
        "_accumulators",
        "_arena",
        "_last",
        "_rule",
        "counts",
        "error",
        "graph",
        "kind",
        "name",
        "native",
    )

    def __init__(self, arena: Arena, name: str, kind: str, rule: Rule) -> None:
        self.name = name
        self.kind = kind
        self.native = arena.native_site(self)
        """The C++ half, which folds in tensors like the last one; None without C++ hooks."""
        self.counts: Counts | _hooks.Site = self.native or Counts()
        self.error: str | None = None
        self.graph = GraphSite()
        """The counts of compiled graphs, which `counts` does not include."""
        self._arena = arena
        self._rule = rule
        self._last: _Place | None = None
        self._accumulators: dict[torch.device, Accumulator] = {}

    def observe(self, tensor: Tensor) -> None:
        """Fold a tensor in, and count it."""
        self.counts.settle(self.fold(tensor))

    def receive(self, gradient: Tensor, first: bool) -> None:
        """Count a gradient that arrived and fold it in; `first`: no other gradient arrived for its
        tensor."""
        with self._arena.lock, DisableTorchFunction():
            recording = self._arena.recording
            reason = self.fold(gradient) if recording else reasons.NOT_RECORDED
            self.counts.arrive(first, reason)

    def refuse(self, gradient: Tensor, first: bool) -> None:
        """Count the gradient of a view's base if the view's part cannot be taken out of it."""
        with self._arena.lock, DisableTorchFunction():
            # The memory of shards has no part that is the view.
            reason = unreadable(gradient) or reasons.CHANGED_VIEW
            recording = self._arena.recording
            self.counts.arrive(first, reason if recording else reasons.NOT_RECORDED)

    def fold(self, tensor: Tensor) -> str | None:
        """Fold `tensor` into the open step, or return the reason not to.

        Raises nothing but torch.AcceleratorError, after which the device is lost.
        """
        found = self.prepare(tensor)
        if isinstance(found, str):
            return found
        x, accumulator, channel_dim = found
        try:
            accumulator.fold(x.detach(), channel_dim)
        except Exception as error:
            return self._fail(tensor, error)
        return None

    def prepare(self, tensor: Tensor) -> tuple[Tensor, Accumulator, int | None] | str:
        """What to fold in, `tensor` or this rank's part of it, into which state, and the channel
        dimension. Or the reason to skip the tensor."""
        if self.counts.disabled:
            return reasons.DISABLED
        try:
            reason = unreadable(tensor)
            if reason is not None:
                return reason
            x = tensor if is_plain(tensor) else local_part(tensor)
            last = self._last
            if (
                last is None
                or x.dtype is not last.dtype
                or x.shape != last.shape
                or x.device != last.device
            ):
                found = self._adapt(x.detach())
                if isinstance(found, str):
                    return found
                last = found
            return x, last.accumulator, last.channel_dim
        except Exception as error:
            return self._fail(tensor, error)

    def _fail(self, tensor: Tensor, error: Exception) -> str:
        # Among others, the vmap of autograd.grad batches tensors, and sharding frees them.
        if not has_storage(tensor) or not tensor.untyped_storage().nbytes():
            return reasons.NO_STORAGE
        return self.disable(error)

    def disable(self, error: Exception) -> str:
        """Fold in no more tensors because of `error`, and warn once; returns the reason to skip."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        is_first = self.error is None
        if is_first:
            self.error = f"{type(error).__name__}: {error}"
        self.counts.disabled = True
        if is_first:
            warnings.warn(
                f"hookstats no longer records {self.kind} of {self.name!r}: {self.error}",
                RuntimeWarning,
                stacklevel=3,
            )
        return reasons.DISABLED

    def trace(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> GraphState | str:
        """The state into which graphs fold such tensors, or the reason to skip them.

        shape: -1 for sizes that vary; the number of channels must not vary.
        """
        if self.error is not None:
            return reasons.DISABLED
        known = self._accumulators.get(device)
        if known is not None and known.is_traced() and len(known.info.shape) == len(shape):
            # The site has several graphs, and a record cannot know which of them ran.
            sizes = zip(known.info.shape, shape, strict=True)
            shape = tuple([one if one == other else -1 for one, other in sizes])
        try:
            found = self._place(shape, dtype, device)
            return found if isinstance(found, str) else found.graph_state(self.graph)
        except Exception as error:
            return self.disable(error)

    def _adapt(self, x: Tensor) -> _Place | str:
        """Find channels and state of a tensor unlike the last one, or the reason to skip it."""
        found = self._place(tuple(x.shape), x.dtype, x.device)
        if isinstance(found, str):
            return found
        channel_dim = found.info.channel_dim
        if self.native is not None:
            found.bind(self.native, x, channel_dim)
        self._last = _Place(x.shape, x.dtype, x.device, found, channel_dim)
        return self._last

    def _place(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Accumulator | str:
        """The state for such tensors, or the reason to skip them."""
        if not dtype.is_floating_point or dtype not in DTYPES:
            return f"dtype {short(dtype)}"
        if device.type == "meta":
            return reasons.META
        ndim = len(shape)
        dim = self._rule(ndim)
        if dim is not None and not -ndim <= dim < ndim:
            return f"no dimension {dim}"
        channels = 1 if dim is None else shape[dim]
        if channels == 0:
            return reasons.NO_CHANNELS
        info = SiteInfo(self.name, self.kind, channels, dim, shape, short(dtype))
        if any(known.info.channels != channels for known in self._accumulators.values()):
            return reasons.OTHER_CHANNELS
        accumulator = self._accumulators.get(device)
        if accumulator is None:
            accumulator = self._accumulators[device] = self._arena.accumulator(info, device)
        accumulator.info = info
        return accumulator

    def rows(self) -> list[SiteCoverage]:
        """The site's row of the coverage, in a list as those of `Sites`."""
        skipped = self.graph.totals()
        came, late = skipped.pop(FOLDED, 0), skipped.pop(reasons.NOT_RECORDED, 0)
        of_gradients = AWAITED in skipped
        calls = skipped.pop(AWAITED) if of_gradients else came
        forwards = calls + skipped.total()
        answered = min(came, calls)  # several gradients of a call count as one
        late = min(late, answered)
        skipped[reasons.NOT_RECORDED] = late
        return [
            SiteCoverage(
                name=self.name,
                kind=self.kind,
                forwards=self.counts.forwards + forwards,
                observed=self.counts.observed + answered - late,
                skipped=dict(Counter(self.counts.skipped) + skipped),
                backwards=self.counts.backwards + (came if of_gradients else 0),
                missing=self.counts.missing + calls - answered,
                error=self.error,
            )
        ]


class Sites(dict[str, Site]):
    """The sites of one kind of a module, by the paths of their leaves."""

    def __init__(self, arena: Arena, name: str, kind: str, rule: Rule) -> None:
        super().__init__()
        self.arena = arena
        self.name = name
        self.kind = kind
        self.rule = rule

    def __missing__(self, path: str) -> Site:
        full = len(self) >= MAX_LEAVES
        if full:
            path = "[...]"
            if path in self:
                return self[path]
        site = Site(self.arena, self.name, self.kind + path, self.rule)
        if full:
            site.disable(ValueError(f"the module has tensors by more than {MAX_LEAVES} paths"))
        self[path] = site
        return site

    @property
    def called(self) -> bool:
        """Whether any call of the module was counted; may wait for the devices."""
        return any(site.counts.forwards for site in self.values()) or any(
            any(site.graph.totals().values()) for site in self.values()
        )

    def rows(self) -> list[SiteCoverage]:
        """One row per site; a single row of zeros if no tensor ever arrived."""
        sites = list(self.values()) or [Site(self.arena, self.name, self.kind, self.rule)]
        return [row for site in sites for row in site.rows()]
