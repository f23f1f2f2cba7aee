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
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats._torch import flat_padding, is_flattened
from hookstats.buffers.double_buffer import Accumulator, DoubleBuffer
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.sites import Site
from hookstats.hooks.widths import Widths
from hookstats.kernels.ops import update_many_
from hookstats.records import reasons
from hookstats.stats.state import State

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
        self._watched: list[WatchedParameter] = []
        self._by_id: dict[int, WatchedParameter] | None = None
        self._batches = Batches()

    def add(
        self, owner: nn.Module, key: str, value: Widths | None, gradient: Widths | None
    ) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive."""
        identity = id(owner._parameters[key])
        self._watched.append(WatchedParameter(weakref.ref(owner), key, identity, value, gradient))

    def observe(
        self, groups: list[list[Tensor]], batches: Batches, scale: Tensor | None = None
    ) -> None:
        """Accumulate the watched ones of the parameters, with their gradients divided by `scale`.

        groups: lists of parameters. batches: the batches of these parameters in the last step.
        """
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            if batches.native is not None and batches.native.observe(groups, scale):
                return
            if self._by_id is None:
                self._by_id = {id(watched.tensor()): watched for watched in self._watched}
                for watched in self._watched:
                    watched.check()
            batches.let_go()  # of what an interrupt of the last call left
            try:
                batches.native = self._buffers.native_parameters()
                came: list[tuple[Site, bool]] = []
                for parameter in chain.from_iterable(groups):
                    found = self._by_id.get(id(parameter))
                    if found is not None and found.tensor() is parameter:
                        came += _collect(found, parameter, batches, scaled=scale is not None)
                    else:
                        found = None
                    if is_flattened(parameter):
                        batches.native = None  # it knows of no padding
                    if batches.native is not None:
                        _hand_on(found, parameter, batches.native)
                batches.accumulate(self._buffers.front, scale)
                self._buffers.unread += [s.name for s, is_read in came if s.error or not is_read]
            finally:
                batches.let_go()

    def observe_all(self) -> None:
        """Accumulate all watched parameters."""
        found = [watched.tensor() for watched in self._watched]
        self.observe([[p for p in found if p is not None]], self._batches)

    def are_copied_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer steps copies of the watched parameters, as with master weights: it
        has none of these, and as many elements."""
        tensors = (watched.tensor() for watched in self._watched)
        watched = {id(p): p.numel() for p in tensors if p is not None and p.requires_grad}
        steps = {id(p): p.numel() for group in optimizer.param_groups for p in group["params"]}
        is_apart = watched.keys().isdisjoint(steps)
        return is_apart and 0 < sum(watched.values()) == sum(steps.values())

    def look_again(self) -> None:
        """Have the next step ask the modules again for their parameters."""
        self._by_id = None


class WatchedParameter(NamedTuple):
    """A watched parameter and its sites."""

    owner: weakref.ref[nn.Module]
    key: str
    identity: int
    value: Widths | None
    gradient: Widths | None

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
            for widths in (self.value, self.gradient):
                if widths is not None:
                    widths.first.disable(
                        LookupError(
                            "the parameter is gone: expected watch() to be called after sharding"
                        )
                    )


def _collect(
    watched: WatchedParameter, parameter: Tensor, batches: Batches, *, scaled: bool
) -> list[tuple[Site, bool]]:
    """Add a parameter to the batches; the site of its gradient if one came, and whether it can be
    read."""
    length = own_length(parameter, filter(None, (watched.value, watched.gradient)))
    if length == 0:
        return []
    if watched.value is not None:
        batches.add(watched.value.at(parameter), parameter, scaled=False, length=length)
    if watched.gradient is None:
        return []
    gradient = None if parameter.grad is None else _dense(parameter.grad)
    site = watched.gradient.at(parameter if gradient is None else gradient)
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
    gradient = parameter if parameter.grad is None else parameter.grad
    native.add_watched(
        parameter,
        watched.owner,
        watched.key,
        None if watched.value is None else watched.value.at(parameter).native,
        None if watched.gradient is None else watched.gradient.at(gradient).native,
    )


class Batches(dict[tuple[torch.device, int | None, bool], "_Batch"]):
    """One batch per call of `update_many_`, by device, channel dimension and whether it is scaled.

    Batches last from step to step, with those arguments of the call that stay the same.
    """

    native: _hooks.Parameters | None = None
    """The C++ half, which suffices as long as parameters and gradients are like those before."""

    def __missing__(self, key: tuple[torch.device, int | None, bool]) -> _Batch:
        batch = self[key] = _Batch()
        return batch

    def add(
        self, site: Site, tensor: Tensor, *, scaled: bool, length: int | None = None
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
        batch = self[x.device, channel_dim, scaled]
        batch.sites.append(site)
        batch.accumulators.append(accumulator)
        batch.tensors.append(x)
        return None

    def accumulate(self, front: int, scale: Tensor | None) -> None:
        """Accumulate the added tensors into the buffer `front`."""
        for (device, channel_dim, scaled), batch in self.items():
            if batch.tensors:
                batch.accumulate(front, channel_dim, device, scale if scaled else None)

    def let_go(self) -> None:
        """Forget the tensors."""
        for batch in self.values():
            batch.clear()


class _Batch:
    """Tensors that one call accumulates, each with its site."""

    __slots__ = ("_prepared", "accumulators", "sites", "tensors")

    def __init__(self) -> None:
        self._prepared: tuple[list[Accumulator], tuple[_States, _States]] | None = None
        self.clear()

    def clear(self) -> None:
        # New lists: the old ones may be what was prepared for.
        self.sites: list[Site] = []
        self.accumulators: list[Accumulator] = []
        self.tensors: list[Tensor] = []

    def accumulate(
        self, front: int, channel_dim: int | None, device: torch.device, scale: Tensor | None
    ) -> None:
        """Accumulate the tensors."""
        if self._prepared is None or self._prepared[0] != self.accumulators:
            first, second = zip(*(a.states for a in self.accumulators), strict=True)
            self._prepared = self.accumulators, (_by_argument(first), _by_argument(second))
        states = self._prepared[1][front]
        sampling = self.accumulators[0].states[front].sampling
        try:
            if scale is not None:
                scale = torch.as_tensor(scale, dtype=torch.float32, device=device)
            update_many_(self.tensors, channel_dim, *states, scale, sampling)
        except torch.AcceleratorError:
            raise
        except Exception:
            # A refused call changes no state. One by one, the tensors show which was refused.
            for site, accumulator, x in self._entries():
                state = _by_argument([accumulator.states[front]])
                reason = _accumulate_alone(
                    site, accumulator, x, channel_dim, *state, scale, sampling
                )
                site.counts.count(reason)
        else:
            for site, accumulator in zip(self.sites, self.accumulators, strict=True):
                accumulator.count()
                site.counts.count(None)

    def _entries(self) -> Iterator[tuple[Site, Accumulator, Tensor]]:
        return zip(self.sites, self.accumulators, self.tensors, strict=True)


def _accumulate_alone(
    site: Site, accumulator: Accumulator, x: Tensor, *arguments: Any
) -> str | None:
    """Accumulate one tensor of a batch, or return the reason not to."""
    try:
        update_many_([x], *arguments)
    except Exception as error:
        return site.fail(x, error)
    accumulator.count()
    return None


_States = tuple[
    list[Tensor], list[Tensor], list[Tensor], Tensor | None, list[Tensor], Tensor | None
]
"""The arguments of `update_many_` after xs and channel_dim: the fields of `State` but `sampling`,
in lists."""


def _by_argument(states: Sequence[State]) -> _States:
    """The states as lists, one list per argument of `update_many_`."""
    return (
        [state.moments for state in states],
        [state.tallies for state in states],
        [state.counts for state in states if state.counts is not None],
        states[0].bins,
        [state.channel_counts for state in states if state.channel_counts is not None],
        states[0].channel_bins,
    )
