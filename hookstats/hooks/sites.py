"""Site: one watched tensor of a model, its place in the double buffer and what became of it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hookstats._torch import Placed, is_dtensor, is_freed
from hookstats.buffers.double_buffer import Accumulator, DoubleBuffer
from hookstats.buffers.graph_states import ACCUMULATED, AWAITED, GraphSite, GraphState
from hookstats.hooks.channels import Rule, WithIntegers
from hookstats.hooks.coverage import Counts, SiteCoverage
from hookstats.hooks.gradients import register
from hookstats.hooks.readable import is_captured, own_dispatch, own_values, short
from hookstats.hooks.sharding import Sharding
from hookstats.kernels.ops import has_kernels
from hookstats.records import reasons
from hookstats.records.layout import Layout
from hookstats.records.record import SiteInfo
from hookstats.stats.mask import covered_dims
from hookstats.stats.messages import error_text, warn
from hookstats.stats.reference import DTYPES

if TYPE_CHECKING:
    import weakref

    from hookstats import _hooks
    from hookstats.hooks.widths import Widths


class _Place(NamedTuple):
    """Where the last tensor was accumulated; a tensor like it needs no further look."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    accumulator: Accumulator
    channel_dim: int | None
    placements: object
    """Of a DTensor."""


class Site:
    """One tensor that a model computes or owns, in one width: accumulates it, or skips it with a
    reason.

    Callers hold the double buffer's lock, except for `receive`.
    """

    __slots__ = (
        "__weakref__",
        "_accumulators",
        "_buffers",
        "_last",
        "_located",
        "_sharding",
        "_widths",
        "counts",
        "error",
        "graph",
        "kind",
        "name",
        "native",
        "rule",
    )

    def __init__(
        self,
        buffers: DoubleBuffer,
        name: str,
        kind: str,
        rule: Rule,
        widths: weakref.ref[Widths] | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """widths: what knows the sites of the tensor's other widths.

        sharding: how the model's tensors are spread over ranks; None if they are not.
        """
        self.name = name
        self.kind = kind
        self.native = buffers.native_site(self)
        """The C++ half, which accumulates tensors like the last one; None without C++ hooks."""
        self.counts: Counts | _hooks.Site = self.native or Counts()
        self.error: str | None = None
        self.graph = GraphSite()
        """The counts of compiled graphs, which `counts` does not include."""
        self._buffers = buffers
        self.rule = rule
        """For the channel dimension."""
        self._widths = widths
        self._sharding = sharding
        self._last: _Place | None = None
        self._located: tuple[torch.Size, Layout | None] | None = None
        self._accumulators: dict[torch.device, Accumulator] = {}

    def observe(self, tensor: Tensor) -> None:
        """Accumulate a tensor of the call under way, and count it."""
        self.counts.count(*self.accumulate(tensor, self._buffers.mask.now))

    def receive(self, gradient: Tensor, first: bool, mask: Tensor | None = None) -> None:
        """Count a gradient that arrived and accumulate it.

        first: no other gradient arrived for its tensor.
        mask: that of the call which had the tensor, as in `CurrentMask.now`.
        """
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            site = self._of_width(gradient)
            if first and site is not self:  # as where a gradient's shard is not like its tensor's
                self.counts.missing -= 1
                site.counts.missing += 1
            site.counts.disabled = site.error is not None
            if self._buffers.recording:
                site.counts.count_gradient(first, *site.accumulate(gradient, mask))
            else:
                site.counts.count_gradient(first, reasons.NOT_RECORDED)

    def await_gradient(self, tensor: Tensor) -> None:
        """Register the hooks that accumulate the gradient of a tensor of the call under way."""
        register(partial(self.receive, mask=self._buffers.mask.now), self.disable, tensor)

    def await_in_replays(self, tensor: Tensor) -> str | None:
        """Have each replay of the graph that is captured count that a gradient is awaited.

        Returns the reason if the graph will accumulate none.
        """
        known = self._for_replays(tensor.device)
        if known is None or self._buffers.mask.now is not None:
            return reasons.GRAPH_CAPTURE
        known.captured(self.graph, AWAITED)
        self.graph.counter(AWAITED, tensor.device).data.add_(1)
        return None

    def _for_replays(self, device: torch.device) -> Accumulator | None:
        """What a graph that is captured may be given: nothing where no tensor came before, as rows
        are not to be made in a capture, and nothing that the fallback accumulates, which waits."""
        return self._accumulators.get(device) if has_kernels(device.type) else None

    def _of_width(self, gradient: Tensor) -> Site:
        """The site for a gradient, which usually has the width of its tensor."""
        try:
            widths = None if self._widths is None else self._widths()
            return (widths and widths.find(gradient)) or self
        except Exception as error:
            self.disable(error)
            return self

    def note_sharding(self, tensor: Tensor) -> None:
        """Await gradients, and note where `tensor` is among those of all ranks, which its gradient
        cannot tell."""
        self.counts.disabled = self.error is not None
        if self._sharding is None or (self._located and self._located[0] == tensor.shape):
            return
        self._located = None
        self._located = tensor.shape, self._find_layout(tensor)

    def _find_layout(self, tensor: Tensor) -> Layout | None:
        if self._sharding is None:
            return None
        if self._located is not None and not is_dtensor(tensor):
            return self._located[1]
        try:
            return self._sharding.layout(self.kind, tensor)
        except torch.AcceleratorError:
            raise  # the device is lost
        except Exception as error:
            warn(
                f"hookstats cannot tell which part of {self.kind} of {self.name!r} this rank has: "
                f"{error_text(error)}"
            )
            self._sharding = None
            return None

    def accumulate(self, tensor: Tensor, mask: Tensor | None) -> tuple[str | None, bool]:
        """Accumulate `tensor`, or the rows of it that a mask keeps: all if the mask does not fit.

        Returns the reason if it is not accumulated, and whether all rows are in though there is a
        mask. Raises nothing but torch.AcceleratorError, after which the device is lost.

        mask: as in `CurrentMask.now`.
        """
        found = self.prepare(tensor)
        if isinstance(found, str):
            return found, False
        x, accumulator, channel_dim = found
        if mask is not None and accumulator.outcome is not None:
            return reasons.GRAPH_CAPTURE, False  # replays may outlast the mask
        try:
            half = None if mask is not None or tensor.is_complex() else self.native
            if half is not None and half.accumulate(x):
                return None, False
            fits = mask is not None and _fits(mask, x, channel_dim)
            accumulator.accumulate(x.detach(), channel_dim, mask if fits else None)
        except Exception as error:
            return self.fail(tensor, error), False
        return accumulator.outcome, mask is not None and not fits

    def prepare(self, tensor: Tensor) -> tuple[Tensor, Accumulator | GraphState, int | None] | str:
        """What to accumulate, `tensor` or this rank's part of it, into which state, and the channel
        dimension. Or the reason to skip the tensor.

        While a graph is captured, the state is one for its replays.
        """
        if self.counts.disabled:
            return reasons.DISABLED
        try:
            x = own_values(tensor)
            if isinstance(x, str):
                return x
            captured = is_captured(x)
            if captured and self._for_replays(x.device) is None:
                return reasons.GRAPH_CAPTURE
            placements = None if x is tensor else getattr(tensor, "placements", None)
            last = self._last
            if (
                last is None
                or x.dtype is not last.dtype
                or x.shape != last.shape
                or x.device != last.device
                or placements != last.placements
            ):
                found = self._adapt(x.detach(), tensor, placements)
                if isinstance(found, str):
                    return found
                last = found
            if x.is_complex():
                x = torch.view_as_real(x.detach().resolve_conj())
            if captured:
                self._last = None  # the C++ half, which got no plan in the capture, gets one later
                return x, last.accumulator.captured(self.graph), last.channel_dim
            return x, last.accumulator, last.channel_dim
        except Exception as error:
            return self.fail(tensor, error)

    def fail(self, tensor: Tensor, error: Exception) -> str:
        """The reason to skip a tensor that cannot be read because of `error`, which disables the
        site unless the tensor has no memory."""
        return reasons.NO_STORAGE if is_freed(tensor) else self.disable(error)

    def disable(self, error: Exception) -> str:
        """Stop accumulating because of `error`, and warn once; returns the reason to skip."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        is_first = self.error is None
        if is_first:
            self.error = error_text(error)
        self.counts.disabled = True
        if is_first:
            warn(f"hookstats no longer records {self.kind} of {self.name!r}: {self.error}")
        return reasons.DISABLED

    def trace(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        placed: Placed | None = None,
    ) -> GraphState | str:
        """The state into which graphs accumulate such tensors, or the reason to skip them.

        shape: -1 for sizes that vary; the number of channels must not vary. placed: of DTensors.
        """
        if self.error is not None:
            return reasons.DISABLED
        if dtype.is_complex:
            return f"dtype {short(dtype)}"
        known = self._accumulators.get(device)
        if known is not None and known.is_traced() and len(known.info.shape) == len(shape):
            # The site has several graphs, and a record cannot know which of them ran.
            sizes = zip(known.info.shape, shape, strict=True)
            shape = tuple([one if one == other else -1 for one, other in sizes])
        try:
            layout = None
            if self._sharding is not None:
                layout = self._sharding.traced_layout(self.kind, shape, placed)
            found = self._place(shape, dtype, device, layout)
            return found if isinstance(found, str) else found.graph_state(self.graph)
        except Exception as error:
            return self.disable(error)

    def _adapt(self, x: Tensor, whole: Tensor, placements: object) -> _Place | str:
        """Find channels and state of a tensor unlike the last one, or the reason to skip it.

        x: this rank's part of `whole`.
        """
        found = self._place(tuple(x.shape), x.dtype, x.device, self._find_layout(whole))
        if isinstance(found, str):
            return found
        channel_dim = found.info.channel_dim
        if self.native is not None and not x.is_complex():
            found.set_plan(self.native, x, channel_dim)
        self._last = _Place(x.shape, x.dtype, x.device, found, channel_dim, placements)
        return self._last

    def _place(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout | None = None,
    ) -> Accumulator | str:
        """The state for such tensors, or the reason to skip them."""
        found = channels_of(self.rule, shape, dtype, device)
        if isinstance(found, str):
            return found
        dim, channels = found
        info = SiteInfo(self.name, self.kind, channels, dim, shape, short(dtype), layout)
        accumulator = self._accumulators.get(device)
        if accumulator is None:
            accumulator = self._accumulators[device] = self._buffers.accumulator(info, device)
        accumulator.info = info
        return accumulator

    def channel_dim(self, ndim: int, dtype: torch.dtype) -> int | None:
        """The dimension of the channels in tensors of `ndim` dimensions; None: there is one."""
        return self.rule(ndim) if dtype.is_floating_point else None

    def row(self) -> SiteCoverage:
        """The site's row of the coverage."""
        skipped = self.graph.totals()
        came, late = skipped.pop(ACCUMULATED, 0), skipped.pop(reasons.NOT_RECORDED, 0)
        unmasked = self.counts.unmasked + skipped.pop(reasons.MASK_UNFIT, 0)
        of_gradients = AWAITED in skipped
        calls = skipped.pop(AWAITED) if of_gradients else came
        forwards = calls + skipped.total()
        answered = min(came, calls)  # several gradients of a call count as one
        late = min(late, answered)
        skipped[reasons.NOT_RECORDED] = late
        in_graphs = answered - late
        return SiteCoverage(
            name=self.name,
            kind=self.kind,
            forwards=self.counts.forwards + forwards,
            observed=self.counts.observed + in_graphs,
            skipped=dict(Counter(self.counts.skipped) + skipped),
            backwards=self.counts.backwards + (came if of_gradients else 0),
            missing=self.counts.missing + calls - answered,
            error=self.error,
            unmasked={reasons.MASK_UNFIT: unmasked} if unmasked else {},
        )


def _fits(mask: Tensor, x: Tensor, channel_dim: int | None) -> bool:
    """Whether a mask says which rows of a tensor count."""
    return mask.device == x.device and bool(covered_dims(mask.shape, x.shape, channel_dim))


def channels_of(
    rule: Rule, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[int | None, int] | str:
    """The channel dimension and the number of channels of such tensors, or why to skip them.

    Complex numbers are pairs of reals, which the dimensions do not count.
    """
    has_channels = dtype.is_floating_point or dtype.is_complex
    takes = has_channels or isinstance(rule, WithIntegers)
    if not takes or not (dtype in DTYPES or dtype.is_complex):
        return f"dtype {short(dtype)}"
    if device.type == "meta":
        return reasons.META
    ndim = len(shape)
    dim = rule(ndim) if has_channels else None
    if dim is not None and not -ndim <= dim < ndim:
        return f"no dimension {dim}"
    if dim is not None and dtype.is_complex:
        dim %= ndim
    channels = 1 if dim is None else shape[dim]
    return reasons.NO_CHANNELS if channels == 0 else (dim, channels)
