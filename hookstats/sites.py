"""Site: one watched tensor of a model, its place in the arena and what became of it."""

from __future__ import annotations

import warnings
from collections import Counter

import torch
from torch import Tensor
from torch._C import _disabled_torch_dispatch_impl, _has_storage
from torch._C._functorch import maybe_current_level

from hookstats.accumulators import Accumulator, Arena
from hookstats.channels import Rule
from hookstats.coverage import SiteCoverage
from hookstats.graph_states import AWAITED, FOLDED, LATE, GraphSite, GraphState
from hookstats.records import SiteInfo
from hookstats.reference import DTYPES


class Site:
    """One tensor that a model computes or owns: skips it, with a reason, or folds it in.

    Its methods are called under the arena's lock.
    """

    __slots__ = (
        "_accumulator",
        "_accumulators",
        "_arena",
        "_channel_dim",
        "_device",
        "_dtype",
        "_rule",
        "_shape",
        "backwards",
        "error",
        "forwards",
        "graph",
        "kind",
        "missing",
        "name",
        "observed",
        "skipped",
    )

    def __init__(self, arena: Arena, name: str, kind: str, rule: Rule) -> None:
        self.name = name
        self.kind = kind
        self.forwards = self.observed = self.backwards = self.missing = 0
        self.skipped: Counter[str] = Counter()
        self.error: str | None = None
        self.graph = GraphSite()
        """What compiled graphs counted, beside the numbers above."""
        self._arena = arena
        self._rule = rule
        # The last tensor folded in, and what it needs; a tensor like it needs no second look.
        self._shape: torch.Size | None = None
        self._dtype: torch.dtype | None = None
        self._device: torch.device | None = None
        self._channel_dim: int | None = None
        self._accumulator: Accumulator | None = None
        self._accumulators: dict[torch.device, Accumulator] = {}

    def observe(self, tensor: Tensor) -> None:
        """Count a tensor and fold it in."""
        self.forwards += 1
        self.settle(self.fold(tensor))

    def skip(self, reason: str) -> None:
        """Count a tensor and leave it out."""
        self.forwards += 1
        self.skipped[reason] += 1

    def settle(self, reason: str | None) -> None:
        """Say of a tensor that was counted why it was left out, None if it was folded in."""
        if reason is None:
            self.observed += 1
        else:
            self.skipped[reason] += 1

    def fold(self, tensor: Tensor) -> str | None:
        """Fold `tensor` into the open step, or give the reason not to.

        Raises nothing but torch.AcceleratorError, after which the device is lost.
        """
        if self.error is not None:
            return "disabled"
        try:
            reason = unreadable(tensor)
            if reason is None:
                x = tensor.detach()
                if x.dtype is not self._dtype or x.shape != self._shape or x.device != self._device:
                    reason = self._adapt(x)
                if reason is None and self._accumulator is not None:
                    self._accumulator.fold(x, self._channel_dim)
            return reason
        except Exception as error:
            if not _has_storage(tensor):  # batched by the vmap of autograd.grad, to name one
                return "no storage"
            return self.disable(error)

    def disable(self, error: Exception) -> str:
        """Fold nothing any more because of `error`; warn, once; give the reason to skip."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        if self.error is None:
            self.error = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"hookstats records {self.kind} of {self.name!r} no more: {self.error}",
                RuntimeWarning,
                stacklevel=3,
            )
        return "disabled"

    def trace(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> GraphState | str:
        """The state into which graphs fold tensors like that, or the reason to skip them.

        shape: -1 for sizes that vary; the number of channels must not.
        """
        if self.error is not None:
            return "disabled"
        known = self._accumulators.get(device)
        if known is not None and known.is_traced() and len(known.info.shape) == len(shape):
            # Which of its graphs runs is not known here.
            sizes = zip(known.info.shape, shape, strict=True)
            shape = tuple([one if one == other else -1 for one, other in sizes])
        try:
            found = self._place(shape, dtype, device)
            return found if isinstance(found, str) else found.graph_state(self.graph)
        except Exception as error:
            return self.disable(error)

    def _adapt(self, x: Tensor) -> str | None:
        """Find channels and state of a tensor unlike the last one, or the reason to skip it."""
        found = self._place(tuple(x.shape), x.dtype, x.device)
        if isinstance(found, str):
            return found
        self._accumulator = found
        self._channel_dim = found.info.channel_dim
        self._shape, self._dtype, self._device = x.shape, x.dtype, x.device
        return None

    def _place(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Accumulator | str:
        """The state for tensors like that, or the reason to skip them."""
        if not dtype.is_floating_point or dtype not in DTYPES:
            return f"dtype {_short(dtype)}"
        if device.type == "meta":
            return "meta tensor"
        ndim = len(shape)
        dim = self._rule(ndim)
        if dim is not None and not -ndim <= dim < ndim:
            return f"no dimension {dim}"
        channels = 1 if dim is None else shape[dim]
        if channels == 0:
            return "no channels"
        info = SiteInfo(self.name, self.kind, channels, dim, shape, _short(dtype))
        accumulator = self._accumulators.get(device)
        if accumulator is not None and accumulator.info.channels != channels:
            return "other number of channels"
        last = self._accumulator
        if last is not None and last is not accumulator and not last.is_empty():
            return "second device in a step"
        if accumulator is None:
            accumulator = self._accumulators[device] = self._arena.accumulator(info, device)
        accumulator.info = info
        return accumulator

    def rows(self) -> list[SiteCoverage]:
        """Its row of the coverage."""
        skipped = self.graph.totals()
        came, late = skipped.pop(FOLDED, 0), skipped.pop(LATE, 0)
        of_gradients = AWAITED in skipped
        calls = skipped.pop(AWAITED) if of_gradients else came
        forwards = calls + skipped.total()
        answered = min(came, calls)  # several gradients a call count as one
        late = min(late, answered)
        skipped[LATE] = late
        return [
            SiteCoverage(
                name=self.name,
                kind=self.kind,
                forwards=self.forwards + forwards,
                observed=self.observed + answered - late,
                skipped=dict(self.skipped + skipped),
                backwards=self.backwards + (came if of_gradients else 0),
                missing=self.missing + calls - answered,
                error=self.error,
            )
        ]


def unreadable(tensor: Tensor) -> str | None:
    """Why `tensor` has no plain memory with its values, None if it has; cheap."""
    cls = type(tensor)
    if cls is not Tensor and cls.__torch_dispatch__ is not _disabled_torch_dispatch_impl:
        return cls.__name__  # FakeTensor, DTensor, jagged NestedTensor, ...
    if maybe_current_level() is not None:
        return "torch.func transform"
    if tensor.layout is not torch.strided:
        return f"layout {_short(tensor.layout)}"
    return "nested tensor" if tensor.is_nested else None


class Sites(dict[str, Site]):
    """The sites of one kind of a module, or of a parameter, by their leaf's path."""

    def __init__(self, arena: Arena, name: str, kind: str, rule: Rule) -> None:
        super().__init__()
        self.arena = arena
        self.name = name
        self.kind = kind
        self.rule = rule

    def __missing__(self, path: str) -> Site:
        site = self[path] = Site(self.arena, self.name, self.kind + path, self.rule)
        return site

    def rows(self) -> list[SiteCoverage]:
        """A row a site; one of zeros where no tensor ever came."""
        sites = list(self.values()) or [Site(self.arena, self.name, self.kind, self.rule)]
        return [row for site in sites for row in site.rows()]


def _short(dtype_or_layout: object) -> str:
    return str(dtype_or_layout).removeprefix("torch.")
