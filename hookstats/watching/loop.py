"""Loop: what a training loop does around the steps of its optimizers, seen without a tensor's data.

Tensors are told apart by identity, and changes in place by the version that torch counts for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookstats._torch import is_flattened, is_plain
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.inert import Calling
from hookstats.hooks.steps import parameters_of
from hookstats.rules.facts import LoopFact, What

_FIRST = 64
"""How many steps of an optimizer are checked; later, only recorded ones are."""
_LASTS = 3
"""How many steps have something before it is told."""
_DROPOUTS = nn.modules.dropout._DropoutNd
_NORMS = nn.modules.batchnorm._BatchNorm


class Loop:
    """The loop around the steps of a watch's optimizers; raises nothing, and keeps no model alive.

    Of each optimizer the smallest gradients, up to three, are kept until the next step, so that
    these are known again.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        modules: Mapping[str, nn.Module],
        buffers: DoubleBuffer,
        tell: Callable[[LoopFact], object],
    ) -> None:
        """names: of parameters, by id. modules: the watched ones. tell: takes what is
        found."""
        self._names = names
        self._rescaled = {
            id(module.weight)
            for module in modules.values()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        }
        self._modules = [
            (name, weakref.ref(module))
            for name, module in modules.items()
            if isinstance(module, (_DROPOUTS, _NORMS))
        ]
        self.buffers = buffers
        self._tell = tell
        self._optimizers: list[Stepping] = []
        self._in_eval = 0  # how many steps in a row all modules were

    def add(self) -> Stepping:
        """What is to look at the steps of one more optimizer."""
        self._optimizers.append(Stepping(self))
        return self._optimizers[-1]

    def end(self) -> None:
        """Let go of all gradients."""
        for stepping in self._optimizers:
            stepping.let_go()

    def knows(self, parameter: Tensor) -> bool:
        """Whether the watch has a parameter."""
        return id(parameter) in self._names

    def is_apart(self, parameter: Tensor) -> bool:
        """Whether others may write to a parameter: it is frozen, an embedding with a greatest norm
        rescales it, FSDP moves it, or the watch does not have it."""
        written = id(parameter) in self._rescaled or not parameter.requires_grad
        return written or is_flattened(parameter) or not self.knows(parameter)

    def told(self, what: What, parameters: Sequence[Tensor], many: int = 1) -> None:
        """Tell of something that is so of parameters, of which these are the first, and of so many
        in all."""
        names = tuple(self._names.get(id(parameter), "") for parameter in parameters[:3])
        self._tell(LoopFact(what, names or ("",), many))

    def look_at_modes(self) -> None:
        """Look at whether all modules that know a mode of training are in that of evaluation."""
        several = [(name, module()) for name, module in self._modules]
        found = [(name, module) for name, module in several if _has_mode(module)]
        if not found or any(module.training for _, module in found if module is not None):
            self._in_eval = 0
            return
        self._in_eval += 1
        if self._in_eval == 2:
            self._tell(LoopFact("eval", tuple(name for name, _ in found[:3]), len(found)))


class Stepping:
    """What the steps of one optimizer do with gradients, and what happens between them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._steps = 0
        self._places: list[tuple[int, int]] = []  # of the parameters whose gradients are kept
        self._kept: list[tuple[Tensor, int]] = []  # these gradients, and their versions
        self._none = self._again = self._grown = 0  # in how many steps in a row
        self._watch: _Arrivals | None = None
        self._left: list[_State | None] = []  # of all parameters, after the last step
        self._rests = False  # whether nothing is kept, and only recorded steps are looked at
        self._written = 0  # before how many steps in a row they were written to
        self._is_told = False  # whether they ever were
        self._has_failed = False

    def look(self, optimizer: Optimizer, *, after: bool) -> None:
        """Look at a step before its end, or after it; closures make their own gradients."""
        self._steps += not after
        if self._has_failed or (self._rests and not self._loop.buffers.recording):
            return
        try:
            (self._after if after else self._before)(optimizer)
        except Exception:  # of a parameter that is none: the checks end, the training does not
            self._has_failed = True

    def _before(self, optimizer: Optimizer) -> None:
        """Look at the gradients that a step is about to use."""
        self._rests = self._steps > _FIRST and not self._loop.buffers.recording
        if self._rests:
            self.let_go()
            return
        self._loop.look_at_modes()
        self._look_for_any(optimizer)
        self._look_for_writes(optimizer)
        kept, self._kept = self._kept, []
        arrivals, self._watch = self._watch, None
        if arrivals is not None and arrivals.end():
            self._loop.told("kept", [arrivals.parameter], self._steps)
        now = [p.grad for p in self._at(optimizer, self._places)]
        if not kept or len(now) != len(kept):
            self._again = self._grown = 0
            return
        pairs = [(new, *old) for new, old in zip(now, kept, strict=True)]
        are_same = all(new is old for new, old, _ in pairs)
        moved = [new is not None and new._version > version for new, _, version in pairs]
        self._again = self._again + 1 if are_same and not any(moved) else self._again
        self._grown = self._grown + 1 if are_same and all(moved) else 0
        if are_same and not any(moved) and self._again == _LASTS:
            self._loop.told("again", self._at(optimizer, self._places)[:1])

    def _after(self, optimizer: Optimizer) -> None:
        """Keep gradients that a step has used."""
        if self._steps > _FIRST and not self._kept and not self._loop.buffers.recording:
            return
        if self._written < _LASTS:
            self._left = [_state(parameter) for parameter in parameters_of(optimizer)]
        if not self._places:
            self._places = _smallest(optimizer)
        found = self._at(optimizer, self._places)
        gradients = [p.grad for p in found]
        if not found or any(grad is None or not is_plain(grad) for grad in gradients):
            self._places = []
            return
        self._kept = [(grad, grad._version) for grad in gradients if grad is not None]
        if self._grown >= _LASTS:
            self._grown = -_FIRST  # once in a while
            self._watch = _Arrivals(found[0], *self._kept[0])

    def let_go(self) -> None:
        """Keep nothing."""
        self._kept, self._places, self._left = [], [], []
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _look_for_any(self, optimizer: Optimizer) -> None:
        """Look at whether the step has any gradient."""
        if any(p.grad is not None for p in parameters_of(optimizer)):
            self._none = 0
            return
        self._none += 1
        several = [p for p in parameters_of(optimizer) if p.requires_grad]
        if self._none == _LASTS and several:
            known = list(filter(self._loop.knows, several))
            self._loop.told("none" if known else "foreign", known, len(several))

    def _look_for_writes(self, optimizer: Optimizer) -> None:
        """Look at whether parameters are as the last step left them."""
        left, self._left = self._left, []
        several = list(parameters_of(optimizer)) if left else []
        now = [_state(parameter) for parameter in several]
        if not left or len(now) != len(left):
            return
        found = [
            p
            for p, was, is_now in zip(several, left, now, strict=True)
            if was != is_now and was and is_now and was[0] == is_now[0]
            if not self._loop.is_apart(p)
        ]
        self._written = self._written + 1 if found else 0
        if found and not self._is_told:
            self._is_told = True
            self._loop.told("written", found, len(found))
        if self._written == _LASTS:
            self._loop.told("rewritten", found, len(found))

    def _at(self, optimizer: Optimizer, places: list[tuple[int, int]]) -> list[Tensor]:
        groups = optimizer.param_groups
        try:
            return [groups[i]["params"][j] for i, j in places]
        except IndexError:  # the groups became others
            return []


class _Arrivals:
    """Whether a gradient is as a step left it when the next backward adds to it.

    A hook of the parameter's tells, which is there until the next step.
    """

    def __init__(self, parameter: Tensor, gradient: Tensor, version: int) -> None:
        self.parameter = parameter
        self._kept = gradient
        self._version = version
        self._times = 0
        self._is_touched = False
        hook = Calling(self._arrived)
        self._handle: RemovableHandle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]

    def end(self) -> bool:
        """Remove the hook; whether a backward came, and nothing but backwards did anything."""
        self._handle.remove()
        return self._times > 0 and not self._is_touched

    def _arrived(self, _: Tensor) -> None:
        grad = self.parameter.grad
        self._is_touched |= grad is not self._kept or grad._version > self._version + self._times
        self._times += 1


_State = tuple[int, int, int]
"""What a write to a parameter changes, but for its identity, which comes first: its version, or its
address."""


def _state(parameter: Tensor) -> _State | None:
    """The state of a parameter; None of DTensors, lazy parameters and the like, which others move.

    It is asked of all parameters of a step, and cheap.
    """
    if type(parameter) is not nn.Parameter:
        return None
    return id(parameter), parameter._version, parameter.data_ptr()


def _smallest(optimizer: Optimizer) -> list[tuple[int, int]]:
    """The places of the three smallest parameters with gradients."""
    found = [
        (parameter.numel(), (i, j))
        for i, group in enumerate(optimizer.param_groups)
        for j, parameter in enumerate(group["params"])
        if parameter.grad is not None
    ]
    return [place for _, place in sorted(found)[:3]]


def _has_mode(module: Any) -> bool:
    """Whether the mode of a module says what it does: a dropout's, or that of a batch norm that is
    trained."""
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    if not isinstance(module, _NORMS) or not module.track_running_stats:
        return False
    return module.weight is None or module.weight.requires_grad
