"""Parameters: their values and gradients, as an optimizer is about to use them.

A hook before the optimizer's step sees what no hook of the backward does: the gradient that was
accumulated over micro-batches and reduced over ranks, whatever computed it and however often. One
call of `update_many_` folds the gradients of all its parameters in.

- A gradient counts once a step of its optimizer. One that is None is missing, or skipped where the
  parameter is frozen; one that is sparse is skipped.
- Gradients are unscaled. Under a `torch.amp.GradScaler` most optimizers get unscaled gradients, and
  their `step` is not called where one of them is not finite: then this step stays open, and the
  next one has the outputs and their gradients of both iterations, unless `Watch.step` closes it.
  An optimizer that unscales by itself, as the fused ones do, is told the scale in its attribute
  `grad_scale`: there gradients are divided by it on the way. It is called in any case, and what is
  not finite is counted as such.
- Given a closure, an optimizer computes the gradients itself, several times if it likes: there it
  is the hook after its step that looks, and sees the last ones.
- Optimizers that step inside the backward, one a parameter, each fold their own parameter in, and
  free the gradient after. The last that has not stepped yet closes the step, as of several
  optimizers in any case. If some of them do not step in every iteration, `Watch.step` closes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookstats.arena.arena import Accumulator, Arena
from hookstats.arena.graph_states import State
from hookstats.hooks import channels
from hookstats.hooks.channels import Rule
from hookstats.hooks.inert import Hook
from hookstats.hooks.sites import Site
from hookstats.kernels.ops import update_many_

if TYPE_CHECKING:
    from hookstats import _hooks


class StepHook(Hook):
    """Step hook of one optimizer: observes its parameters, then says that it steps.

    Registered twice: `after` the step for calls with a closure, before it for all others.
    """

    __slots__ = ("_after", "_arena", "_batches", "_parameters", "_then")

    def __init__(
        self, arena: Arena, parameters: Parameters, then: Callable[[], None], *, after: bool
    ) -> None:
        self._arena = arena
        self._parameters = parameters
        self._then = then
        self._after = after
        self._batches = Batches()

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if (closure is not None) is not self._after:
            return
        if self._arena.recording:
            self._parameters.observe(
                [group["params"] for group in optimizer.param_groups],
                self._batches,
                getattr(optimizer, "grad_scale", None),
            )
        self._then()


class Parameters:
    """The watched parameters.

    A parameter is what its module has by its name at the time, as sharding, a load or a conversion
    may replace it. There are no weak references to parameters: `torch.utils.swap_tensors`, which
    moves DTensors to other dtypes and devices, refuses a tensor that has any.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._watched: list[_Parameter] = []
        self._by_id: dict[int, _Parameter] | None = None
        self._batches = Batches()

    def add(self, owner: nn.Module, key: str, value: Site | None, gradient: Site | None) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive."""
        identity = id(owner._parameters[key])
        self._watched.append(_Parameter(weakref.ref(owner), key, identity, value, gradient))

    def observe(
        self, groups: list[list[Tensor]], batches: Batches, scale: Tensor | None = None
    ) -> None:
        """Fold in those of the parameters that are watched, their gradients divided by `scale`.

        groups: lists of parameters. batches: of these parameters, from the step before.
        """
        with self._arena.lock, DisableTorchFunction():
            if batches.native is not None and batches.native.observe(groups, scale):
                return
            if self._by_id is None:
                self._by_id = {id(watched.tensor()): watched for watched in self._watched}
                for watched in self._watched:
                    watched.check()
            try:
                batches.native = self._arena.native_parameters()
                for parameter in chain.from_iterable(groups):
                    found = self._by_id.get(id(parameter))
                    if found is not None and found.tensor() is parameter:
                        _collect(found, parameter, batches, scaled=scale is not None)
                    else:
                        found = None
                    if batches.native is not None:
                        _hand_on(found, parameter, batches.native)
                batches.fold(self._arena.front, scale)
            finally:
                batches.let_go()

    def observe_all(self) -> None:
        """Fold all of them in."""
        found = [watched.tensor() for watched in self._watched]
        self.observe([[p for p in found if p is not None]], self._batches)

    def look_again(self) -> None:
        """Have the next step ask the modules anew for their parameters."""
        self._by_id = None


class _Parameter(NamedTuple):
    """A watched parameter and its sites."""

    owner: weakref.ref[nn.Module]
    key: str
    identity: int
    value: Site | None
    gradient: Site | None

    def tensor(self) -> Tensor | None:
        """What the parameter is now; None where it is gone."""
        owner = self.owner()
        if owner is None:
            return None
        if self.key in owner._parameters:
            return owner._parameters[self.key]
        # Moved to another name, by a parametrization or by pruning.
        return next((p for p in owner.parameters() if id(p) == self.identity), None)

    def check(self) -> None:
        """Disable the sites of a parameter that its module has lost."""
        if self.owner() is not None and self.tensor() is None:
            for site in (self.value, self.gradient):
                if site is not None:
                    site.disable(
                        LookupError("the parameter is gone: expected a watch after sharding")
                    )


def _collect(watched: _Parameter, parameter: Tensor, batches: Batches, *, scaled: bool) -> None:
    if watched.value is not None:
        batches.add(watched.value, parameter, scaled=False)
    site, gradient = watched.gradient, parameter.grad
    if site is None:
        return
    if gradient is not None:
        site.counts.backwards += 1
        batches.add(site, gradient, scaled=scaled)
    elif not parameter.requires_grad:
        site.skip("requires no gradient")
    else:
        site.counts.forwards += 1
        site.counts.missing += 1


def _hand_on(watched: _Parameter | None, parameter: Tensor, native: _hooks.Parameters) -> None:
    """Have the C++ half know the next parameter, watched or not."""
    if watched is None:
        native.add(parameter)
        return
    value, gradient = (None if s is None else s.native for s in (watched.value, watched.gradient))
    native.add_watched(parameter, watched.owner, watched.key, value, gradient)


class Batches(dict[tuple[torch.device, int | None, bool], "_Batch"]):
    """What is collected for one call each: by device, channel dimension and whether it is scaled.

    They are kept from step to step, with what of a call stays the same.
    """

    native: _hooks.Parameters | None = None
    """What does it all by itself as long as parameters and gradients are like those before."""

    def __missing__(self, key: tuple[torch.device, int | None, bool]) -> _Batch:
        batch = self[key] = _Batch()
        return batch

    def add(self, site: Site, tensor: Tensor, *, scaled: bool) -> None:
        """Count `tensor` and have `fold` fold it in, or skip it."""
        site.counts.forwards += 1
        x = site.prepare(tensor)
        if isinstance(x, str):
            site.settle(x)
            return
        assert site.accumulator is not None  # or there was a reason
        batch = self[x.device, site.channel_dim, scaled]
        batch.sites.append(site)
        batch.accumulators.append(site.accumulator)
        batch.tensors.append(x)

    def fold(self, front: int, scale: Tensor | None) -> None:
        """Fold in what was added, into the buffer `front`."""
        for (device, channel_dim, scaled), batch in self.items():
            if batch.tensors:
                batch.fold(front, channel_dim, device, scale if scaled else None)

    def let_go(self) -> None:
        """Forget the tensors."""
        for batch in self.values():
            batch.clear()


class _Batch:
    """Tensors that are folded in by one call, each with its site."""

    __slots__ = ("_prepared_for", "_states", "accumulators", "sites", "tensors")

    def __init__(self) -> None:
        self._prepared_for: list[Accumulator] = []
        self._states: tuple[_States, _States] | None = None
        self.clear()

    def clear(self) -> None:
        # New lists: the old ones may be what `_states` was prepared for.
        self.sites: list[Site] = []
        self.accumulators: list[Accumulator] = []
        self.tensors: list[Tensor] = []

    def fold(
        self, front: int, channel_dim: int | None, device: torch.device, scale: Tensor | None
    ) -> None:
        """Fold them in."""
        if self._states is None or self._prepared_for != self.accumulators:
            self._prepared_for = self.accumulators
            first, second = zip(*(a.states for a in self.accumulators), strict=True)
            self._states = _by_argument(first), _by_argument(second)
        self._count(1)
        try:
            if scale is not None:
                scale = torch.as_tensor(scale, dtype=torch.float32, device=device)
            update_many_(self.tensors, channel_dim, *self._states[front], scale)
        except Exception as error:
            self._count(-1)
            if isinstance(error, torch.AcceleratorError):
                raise
            # What is refused changes no state: one by one they show whose fault it is.
            for site, accumulator, x in self._entries():
                state = _by_argument([accumulator.states[front]])
                site.settle(_fold_alone(site, accumulator, x, channel_dim, *state, scale))
        else:
            for site in self.sites:
                site.settle(None)

    def _count(self, tensors: int) -> None:
        for accumulator in self.accumulators:
            accumulator.count(tensors)

    def _entries(self) -> Iterator[tuple[Site, Accumulator, Tensor]]:
        return zip(self.sites, self.accumulators, self.tensors, strict=True)


def _fold_alone(site: Site, accumulator: Accumulator, x: Tensor, *arguments: Any) -> str | None:
    """Fold in one tensor of a batch, or give the reason not to."""
    accumulator.count(1)
    try:
        update_many_([x], *arguments)
    except Exception as error:
        accumulator.count(-1)
        return site.disable(error)
    return None


_States = tuple[
    list[Tensor], list[Tensor], list[Tensor], Tensor | None, list[Tensor], Tensor | None
]
"""What `update_many_` takes after xs and channel_dim."""


def _by_argument(states: Sequence[State]) -> _States:
    """The states as lists, one an argument of `update_many_`."""
    _, _, _, bins, _, channel_bins = states[0]
    return (
        [state[0] for state in states],
        [state[1] for state in states],
        [state[2] for state in states if state[2] is not None],
        bins,
        [state[4] for state in states if state[4] is not None],
        channel_bins,
    )


def parameter_rule(parameter: Tensor) -> Rule:
    """Where `parameter` and its gradient have their channels: dimension 0.

    What FSDP1 flattened is a run of elements, on each rank another one: it has no channels.
    """
    if is_lazy(parameter):
        return channels.parameter_rule
    if getattr(parameter, "_fsdp_flattened", False):
        return lambda ndim: None
    whole = parameter.dim()
    return lambda ndim: channels.parameter_rule(ndim) if ndim == whole else None
