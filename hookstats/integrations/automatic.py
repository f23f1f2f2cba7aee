"""Automatic: watches the models that a training script trains, without a line in the script.

The script's optimizers are noted when they are made. At the first call of one of their models with
gradients on, all wrapping is done, as by DDP or FSDP, and usually no code is compiled yet: then
the modules that own the optimizers' parameters are watched. Until then, nn.Module's `__call__`
looks for this moment; afterwards it is as it was. Where compiled code makes all the calls, nothing
sees that moment: the end of the optimizers' first step serves, and that step is not recorded. Nor
does anything where a layer's `forward` is called directly.

Where there is no optimizer, and parameters change between two backwards, the script updates them by
hand: then each backward closes a step.

The script's loss is logged, and the norm of its gradients before clipping; see `loop`.

An optimizer that comes later closes steps of the watch that has its parameters. One of other models
begins another training, as where a script trains one model after the other: it gets another watch,
and watches whose optimizers are gone end.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hookstats._torch import (
    is_compiling_wrapper,
    makes_optimizer_state,
    takes_step_hooks,
    without_compiled_calls,
)
from hookstats.hooks.steps import parameters_of
from hookstats.integrations.loop import Loop
from hookstats.stats.messages import RUN, error_text, say
from hookstats.watching.handle import Watch

MOST_TRAININGS = 16
"""So many trainings of a script are watched: there may be one for each of its batches."""

_MOST_BACKWARDS = 100
"""So many backwards without an optimizer are looked at."""

Begin = Callable[[dict[str, nn.Module], list[Optimizer]], Watch]
"""Begins to watch models, by name, and optimizers."""


class _Training:
    """What is watched together."""

    def __init__(
        self, watch: Watch, optimizers: Iterable[Optimizer], models: Iterable[nn.Module]
    ) -> None:
        self.watch = watch
        self.optimizers = [*map(weakref.ref, optimizers)]
        self.models = [*map(weakref.ref, models)]
        self.logged = watch.open_step
        """The step after the last one whose loss was logged."""

    def has(self, optimizer: Optimizer) -> bool:
        """Whether the models have a parameter of the optimizer."""
        models = filter(None, [model() for model in self.models])
        known = {id(p) for model in models for p in model.parameters()}
        return any(id(p) in known for p in parameters_of(optimizer))

    def is_over(self) -> bool:
        """Whether nothing can close another step."""
        return bool(self.optimizers) and all(one() is None for one in self.optimizers)


class Automatic:
    """Calls `begin` when a training of a script begins; as a context, while it is entered.

    A process that is forked inside the context is left alone. Whatever goes wrong is said on
    stderr, and the script goes on.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._new: list[weakref.ref[Optimizer]] = []
        self._init: Any = Optimizer.__init__
        self._call: Any = nn.Module.__call__
        self._waits = False
        self._loop = Loop(self._after_backward, self._look_at_loss)
        self._context = ExitStack()
        self._by_hand = _ByHand()
        self._stepped = set[int]()  # optimizers, by id, of which no call of a module was seen
        self._after_steps: Any = None
        self._process = os.getpid()
        self._going: list[_Training] = []
        self._left_out = False  # a training, as there were too many
        self.watches: list[Watch] = []
        """The watches that were begun, in order."""

    def __enter__(self) -> Automatic:
        original, note, process = self._init, self._note, self._process

        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if os.getpid() == process:
                note(optimizer)

        Optimizer.__init__ = __init__  # type: ignore[method-assign, assignment]
        self._after_steps = register_optimizer_step_post_hook(self._look_after)
        self._context.enter_context(self._loop.noting())
        return self

    def __exit__(self, *exc: object) -> None:
        Optimizer.__init__ = self._init  # type: ignore[method-assign]
        self._after_steps.remove()
        self._context.close()
        self._look(False)
        self.close()

    def close(self) -> None:
        """Close the watches that are open."""
        for training in self._going:
            self._attempt("closing the watch", training.watch.close)

    def _note(self, optimizer: Optimizer) -> None:
        self._new.append(weakref.ref(optimizer))
        self._by_hand.is_over = True
        self._look(True)

    def _look(self, looks: bool) -> None:
        """Have the calls of modules look whether training begins, or not."""
        if looks == self._waits:
            return
        self._waits = looks
        original, look, process = self._call, self._look_at, self._process

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            looks_now = not torch.compiler.is_compiling() and torch.is_grad_enabled()
            if looks_now and os.getpid() == process:
                self._attempt("looking for what is trained", lambda: look(module))
            return original(module, *args, **kwargs)

        nn.Module.__call__ = __call__ if looks else original  # type: ignore[method-assign]

    def _look_at(self, module: nn.Module) -> None:
        """Watch what is trained, if `module` is part of it."""
        new = self._alive()
        trained = {id(p) for optimizer in new for p in parameters_of(optimizer)}
        of_module = (id(p) in trained for p in module.parameters())
        if new and not (any(of_module) or _is_copied(module, new)):
            return
        self._go(new, module)

    def _look_after(self, optimizer: Optimizer, *_: object) -> None:
        if os.getpid() != self._process or makes_optimizer_state():
            return
        self._attempt("logging the loss", lambda: self._log(optimizer))
        if self._waits:
            self._attempt("looking for what is trained", lambda: self._stepped_unseen(optimizer))

    def _log(self, optimizer: Optimizer) -> None:
        """Log what the loop told, if the optimizer's step closed one of a watch."""
        for training in self._going:
            step = 0 if training.watch.closed else training.watch.open_step
            if step > training.logged and any(one() is optimizer for one in training.optimizers):
                training.logged = step
                training.watch.log(self._loop.take())

    def _look_at_loss(self, loss: Tensor) -> None:
        if os.getpid() == self._process:
            for training in self._going:
                self._attempt("looking at the loss", partial(training.watch.look_at_loss, loss))

    def _after_backward(self) -> None:
        if os.getpid() == self._process and not self._by_hand.is_over:
            self._attempt("closing a step", self._step_by_hand)

    def _step_by_hand(self) -> None:
        """Close a step where the script updates parameters itself, or watch that it does."""
        watch = self._by_hand.watch
        if watch is not None:
            watch.log(self._loop.take())
            watch.step()
        elif roots := roots_of(self._by_hand.updated()):
            self._by_hand.is_over = True  # if this fails
            with without_compiled_calls(roots):
                watch = self._by_hand.watch = self._begin(_named(roots), [])
            watch.leave_out_evaluation()
            watch.set_step(self._by_hand.backwards)
            self.watches.append(watch)
            self._going.append(_Training(watch, [], roots))
            self._loop.take()
            self._by_hand.is_over = False
            say("no optimizer was made: from now on, each backward closes a step", RUN)

    def _stepped_unseen(self, optimizer: Optimizer) -> None:
        """Watch what is trained, if all optimizers that are new have stepped unseen, or one did
        twice."""
        if all(p.grad is None for p in parameters_of(optimizer)):
            return  # it trains nothing
        again = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        new = self._alive()
        if not (again or all(id(one) in self._stepped for one in new)):
            return
        before = len(self.watches)
        self._go(new)
        for watch in self.watches[before:]:
            watch.set_step(watch.open_step + 1 + again)
            self._going[-1].logged = watch.open_step
            what = "steps are" if again else "step is"
            say(
                "no call of the model was seen: compiled code calls it, or its forward is called "
                f"directly; its first {what} not recorded",
                RUN,
            )

    def _alive(self) -> list[Optimizer]:
        return [optimizer for optimizer in (one() for one in self._new) if optimizer is not None]

    def _go(self, new: list[Optimizer], called: nn.Module | None = None) -> None:
        """Watch what the new optimizers train, or have them close steps of a watch.

        called: the module whose call begins.
        """
        self._look(False)
        self._stepped.clear()
        self._new.clear()
        others = [optimizer for optimizer in new if not self._add(optimizer)]
        if others and len(self.watches) < MOST_TRAININGS:
            self._attempt("watching", lambda: self._watch(others, called))
        elif others and not self._left_out:
            self._left_out = True
            say(f"not watched: what is trained after the first {MOST_TRAININGS} trainings", RUN)

    def _add(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer is of a training that goes on; then it closes steps of it."""
        for training in self._going:
            if training.has(optimizer):
                if takes_step_hooks(optimizer):
                    add = partial(training.watch.add_optimizer, optimizer)
                    self._attempt("watching an optimizer that came later", add)
                training.optimizers.append(weakref.ref(optimizer))
                return True
        return False

    def _watch(self, optimizers: list[Optimizer], called: nn.Module | None) -> None:
        for over in [training for training in self._going if training.is_over()]:
            self._going.remove(over)
            self._attempt("closing the watch", over.watch.close)
        roots = roots_of((p for one in optimizers for p in parameters_of(one)), called)
        if not roots and called is not None and _is_copied(called, optimizers):
            roots = [called]
        if not roots:
            say("not watched: no module owns the parameters of the optimizers", RUN)
            return
        usable = [one for one in optimizers if takes_step_hooks(one)]
        with without_compiled_calls(roots):
            watch = self._begin(_named(roots), usable)
        self.watches.append(watch)
        self._going.append(_Training(watch, usable, roots))
        self._loop.take()

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # the script is to go on
            self._look(False)
            say(f"{what} failed: {error_text(error)}", RUN)


def _is_copied(module: nn.Module, optimizers: Iterable[Optimizer]) -> bool:
    """Whether optimizers have as many elements as a module that has none of these: they step
    copies of its parameters."""
    own = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return 0 < own == sum(p.numel() for one in optimizers for p in parameters_of(one))


class _ByHand:
    """Whether a script updates parameters itself: they change between backwards, and there is no
    optimizer."""

    def __init__(self) -> None:
        self.is_over = False
        """Whether there is an optimizer, or no need to look any more."""
        self.watch: Watch | None = None
        self.backwards = 0
        self._seen: tuple[weakref.ref[nn.Module], str, int, float] | None = None

    def updated(self) -> list[torch.Tensor]:
        """The parameters that are trained, after a backward; none if that is not known yet."""
        self.backwards += 1
        self.is_over = self.backwards > _MOST_BACKWARDS
        if self._seen is None:
            self._seen = self._first()
            return []
        known, name, place, value = self._seen
        module = known()
        if module is None or float(getattr(module, name).detach().flatten()[place]) == value:
            return []
        return [p for one in _modules() for p in one.parameters() if p.grad is not None]

    def _first(self) -> tuple[weakref.ref[nn.Module], str, int, float] | None:
        """A parameter that has a gradient, and its element whose gradient is the largest."""
        for module in _modules():
            for name, p in module.named_parameters(recurse=False):
                if p.grad is not None and p.grad.layout is torch.strided and p.grad.any():
                    place = int(p.grad.abs().argmax())
                    return weakref.ref(module), name, place, float(p.detach().flatten()[place])
        return None


def _modules() -> list[nn.Module]:
    """All modules that there are."""
    # Proxies say that they are what they stand for: `type` knows better. No line of Python runs
    # for each of some hundred thousand objects.
    classes = {id(one) for one in _with_subclasses(nn.Module)}
    objects = gc.get_objects()
    are_modules = map(classes.__contains__, map(id, map(type, objects)))
    return [one for one in compress(objects, are_modules) if "_modules" in one.__dict__]


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for one in subclasses:
        yield from _with_subclasses(one)


def roots_of(
    parameters: Iterable[torch.Tensor], called: nn.Module | None = None
) -> list[nn.Module]:
    """The modules that own trained parameters and are part of no other module, in the order of the
    parameters.

    called: the module whose call begins. It stands for a module that has it and a copy of it, as
        where a wrapper keeps a moving average of the parameters.

    Of a module that torch.compile wraps, the module itself counts; of one that has such wrappers
    among its parts, the parts. A module whose trained parameters all belong to modules before it,
    such as a view of some layers, is left out.
    """
    trained = {id(p): place for place, p in enumerate(parameters)}
    if not trained:
        return []
    modules = [one for one in _modules() if not any(map(is_compiling_wrapper, one.modules()))]
    parts = {id(part) for one in modules for part in one._modules.values()}
    owned = [
        (frozenset(id(p) for p in one.parameters()) & trained.keys(), one)
        for one in modules
        if id(one) not in parts
    ]
    roots, covered = [], set[int]()
    for mine, one in sorted(owned, key=lambda pair: -len(pair[0])):
        if not mine <= covered:
            covered |= mine
            stands = called is not None and _stands_for(called, one, mine)
            roots.append((min(trained[p] for p in mine), called if stands else one))
    return [root for _, root in sorted(roots, key=lambda pair: pair[0]) if root is not None]


def _stands_for(module: nn.Module, wrapper: nn.Module, trained: Collection[int]) -> bool:
    """Whether a wrapper has a module, which has all that is trained, and another one like it."""
    parts = list(wrapper.modules())
    if module is wrapper or not any(one is module for one in parts):
        return False
    has_copy = any(type(one) is type(module) and one is not module for one in parts)
    return has_copy and {id(p) for p in module.parameters()}.issuperset(trained)


def _named(roots: list[nn.Module]) -> dict[str, nn.Module]:
    """Several modules by the names of their classes, in lower case; a single one has none."""
    if len(roots) == 1:
        return {"": roots[0]}
    named: dict[str, nn.Module] = {}
    for root in roots:
        base = name = type(root).__name__.lower()
        while name in named:
            name = f"{base}_{len(named)}"
        named[name] = root
    return named
