"""Parameters: their values and gradients, as an optimizer is about to use them.

A hook before the optimizer's step sees what no hook of the backward sees: the gradient that was
accumulated over micro-batches and reduced over ranks, whatever computed it and however often. One
call of `update_many_` accumulates the gradients of all parameters of the optimizer.

- A gradient counts once per step of its optimizer. A gradient that is None is missing, or skipped
  if the parameter is frozen. Complex numbers are pairs of reals, sparse gradients their values; on
  a device only if these are coalesced, since to coalesce them waits for the device. Where a
  gradient cannot be read, the step has no norm of the gradients.
- Gradients are unscaled. Under a `torch.amp.GradScaler` most optimizers get unscaled gradients, and
  the scaler does not call their `step` if a gradient is not finite. This step then stays open, and
  the next one has the outputs and their gradients of both iterations, unless `Watch.step` closes
  it. Optimizers that unscale by themselves, as the fused ones do, have the scale in their attribute
  `grad_scale`: their gradients are divided by it when they are accumulated. The scaler always calls
  the `step` of these, and gradients that are not finite are counted as such.
- With a closure, an optimizer computes the gradients itself, possibly several times: the hook after
  its step observes the last ones.
- Optimizers that step inside the backward, one per parameter, each accumulate their own parameter,
  and free its gradient afterwards. As with any number of optimizers, the last one that has not
  stepped yet closes the step. If some do not step in every iteration, `Watch.step` closes it.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats._torch import flat_padding, is_flattened
from hookstats.buffers.double_buffer import Accumulator, DoubleBuffer
from hookstats.buffers.graph_states import GraphState
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.sites import Site
from hookstats.hooks.widths import Sites, Widths
from hookstats.kernels.ops import update_many_
from hookstats.records import reasons

if TYPE_CHECKING:
    from hookstats import _hooks


class Parameters:
    """The watched parameters.

    A parameter is whatever its module has by the parameter's name at the time: sharding, a load or
    a conversion may replace it. There are no weak references to parameters, since
    `torch.utils.swap_tensors`, which moves DTensors to other dtypes and devices, refuses tensors
    that have any.
    """

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self.watched: list[WatchedParameter] = []
        self._by_id: dict[int, WatchedParameter] | None = None
        self._native: _hooks.Parameters | None = None

    def add(
        self, owner: nn.Module, key: str, sites: Mapping[str, Widths], states: Sites | None
    ) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive.

        sites: by kind. states: by the path of what the optimizer keeps, such as ".exp_avg".
        """
        identity = id(owner._parameters[key])
        self.watched.append(WatchedParameter(weakref.ref(owner), key, identity, sites, states))

    def observe(
        self,
        groups: list[list[Tensor]],
        native: _hooks.Parameters | None,
        scale: Tensor | None = None,
    ) -> _hooks.Parameters | None:
        """Accumulate the watched ones of the parameters, with their gradients divided by `scale`.

        groups: lists of parameters. native: the C++ half, valid while parameters and gradients
            match the ones from which it was made.

        Returns:
            The C++ half for the next step with these parameters.
        """
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            if native is not None and native.observe(groups, scale):
                return native
            if self._by_id is None:
                self._by_id = {id(watched.tensor()): watched for watched in self.watched}
                for watched in self.watched:
                    watched.check()
            batches = Batches()
            native = self._buffers.native_parameters()
            came: list[tuple[Site, bool]] = []
            for parameter in chain.from_iterable(groups):
                found = self._by_id.get(id(parameter))
                if found is not None and found.tensor() is parameter:
                    came += _collect(found, parameter, batches, scaled=scale is not None)
                else:
                    found = None
                if is_flattened(parameter):
                    native = None  # it knows of no padding
                if native is not None:
                    _hand_on(found, parameter, native)
            batches.accumulate(self._buffers.front, scale)
            self._buffers.unread += [s.name for s, is_read in came if s.error or not is_read]
            return native

    def observe_all(self) -> None:
        found = [watched.tensor() for watched in self.watched]
        self._native = self.observe([[p for p in found if p is not None]], self._native)

    def are_copied_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps copies of the watched parameters, as with master weights: it
        has none of these, and as many elements."""
        tensors = (watched.tensor() for watched in self.watched)
        watched = {id(p): p.numel() for p in tensors if p is not None and p.requires_grad}
        steps = {id(p): p.numel() for group in optimizer.param_groups for p in group["params"]}
        is_apart = watched.keys().isdisjoint(steps)
        return is_apart and 0 < sum(watched.values()) == sum(steps.values())

    def look_again(self) -> None:
        """Have the next step ask the modules again for their parameters."""
        self._by_id = None


class WatchedParameter(NamedTuple):
    owner: weakref.ref[nn.Module]
    key: str
    identity: int
    sites: Mapping[str, Widths]
    """By kind."""
    states: Sites | None
    """Of the kind "optimizer_state"."""

    def tensor(self) -> Tensor | None:
        """The parameter as it is now; None if it is gone."""
        owner = self.owner()
        if owner is None:
            return None
        if self.key in owner._parameters:
            return owner._parameters[self.key]
        # A parametrization or pruning moves a parameter to another name.
        return next((p for p in owner.parameters() if id(p) == self.identity), None)

    def check(self) -> None:
        """Disable the sites of a parameter that its module has lost."""
        if self.owner() is not None and self.tensor() is None:
            why = "the parameter is gone: expected watch() to be called after sharding"
            for kind, widths in self.sites.items():
                if kind in ("param", "param_grad"):
                    widths.first.disable(LookupError(why))


def _collect(
    watched: WatchedParameter, parameter: Tensor, batches: Batches, *, scaled: bool
) -> list[tuple[Site, bool]]:
    """Add a parameter to the batches; the site of its gradient if one came, and whether it can be
    read."""
    values, gradients = watched.sites.get("param"), watched.sites.get("param_grad")
    length = own_length(parameter, filter(None, (values, gradients)))
    if length == 0:
        return []
    if values is not None:
        batches.add(values.at(parameter), parameter, length=length)
    if gradients is None:
        return []
    gradient = None if parameter.grad is None else _dense(parameter.grad)
    site = gradients.at(parameter if gradient is None else gradient)
    if gradient is not None:
        site.counts.backwards += 1
        reason = batches.add(site, gradient, scaled=scaled, length=length)
        return [(site, reason in (None, reasons.EMPTY_SHARD))]
    if parameter.requires_grad:
        site.counts.missing += 1
    else:
        site.counts.skip(reasons.NO_GRADIENT)
    return []


def _dense(gradient: Tensor) -> Tensor:
    """The gradient, or the values of a sparse one as one row, if getting them does not wait."""
    if gradient.layout is not torch.sparse_coo or not (gradient.is_cpu or gradient.is_coalesced()):
        return gradient
    try:
        return gradient.detach().coalesce().values().reshape(1, -1)
    except Exception:  # no memory: the gradient is skipped as sparse
        return gradient


def own_length(parameter: Tensor, of: Iterable[Widths]) -> int | None:
    """How many of its first elements are this rank's own, in a parameter that FSDP1 flattened, and
    in what an optimizer keeps for it; None in all others.

    of: where these go. They learn from the parameter which part of the whole this rank has, and
    note where it has none.
    """
    if not is_flattened(parameter):
        return None
    length = parameter.numel() - flat_padding(parameter)
    for widths in of:
        site = widths.at(parameter) if length else widths.first
        site.note_sharding(parameter)
        if not length:
            site.counts.skip(reasons.EMPTY_SHARD)
    return length


def _hand_on(
    watched: WatchedParameter | None, parameter: Tensor, native: _hooks.Parameters
) -> None:
    """Tell the C++ half of the next parameter, watched or not."""
    if watched is None:
        native.add(parameter)
        return
    tensors = {"param": parameter, "param_grad": parameter.grad}
    value, gradient = (
        watched.sites[kind].at(parameter if tensor is None else tensor).native
        if kind in watched.sites
        else None
        for kind, tensor in tensors.items()
    )
    native.add_watched(parameter, watched.owner, watched.key, value, gradient)


class _Entry(NamedTuple):
    site: Site
    accumulator: Accumulator | GraphState
    x: Tensor


class Batches(defaultdict[tuple[torch.device, int | None, bool], list[_Entry]]):
    """What calls of `update_many_` are to accumulate, one for each device, channel dimension and
    whether tensors are scaled."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(
        self, site: Site, tensor: Tensor, *, scaled: bool = False, length: int | None = None
    ) -> str | None:
        """Have `accumulate` take `tensor` and count it, or skip it and return the reason.

        length: of its elements, the first ones alone.
        """
        if length is not None and length < tensor.numel():
            tensor = tensor.detach()[:length]
        found = site.prepare(tensor)
        if isinstance(found, str):
            site.counts.count(found)
            return found
        x, accumulator, channel_dim = found
        self[x.device, channel_dim, scaled].append(_Entry(site, accumulator, x))
        return None

    def accumulate(self, front: int, scale: Tensor | None = None) -> None:
        """Accumulate the added tensors into the buffer `front`."""
        for (_, channel_dim, scaled), entries in self.items():
            about = channel_dim, front, scale if scaled else None
            try:
                _accumulate(entries, *about)
            except torch.AcceleratorError:
                raise
            except Exception:
                # A refused call changes no state. One by one, the tensors show which was refused.
                entries = [one for one in entries if _is_taken(one, *about)]
            for one in entries:
                one.accumulator.count()
                one.site.counts.count(one.accumulator.outcome)


def _is_taken(entry: _Entry, *about: Any) -> bool:
    try:
        _accumulate([entry], *about)
    except Exception as error:
        entry.site.counts.count(entry.site.fail(entry.x, error))
        return False
    return True


def _accumulate(
    entries: Sequence[_Entry], channel_dim: int | None, front: int, scale: Tensor | None
) -> None:
    states = [one.accumulator.states[front] for one in entries]
    first = states[0]
    if scale is not None:
        scale = torch.as_tensor(scale, dtype=torch.float32, device=first.moments.device)
    update_many_(
        [one.x for one in entries],
        channel_dim,
        [state.moments for state in states],
        [state.tallies for state in states],
        [state.counts for state in states if state.counts is not None],
        first.bins,
        [state.channel_counts for state in states if state.channel_counts is not None],
        first.channel_bins,
        scale,
        first.sampling,
    )
