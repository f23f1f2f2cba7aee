"""Automatic: watches the models that a training script trains, without a line in the script.

The script's optimizers are noted when they are made. At the first call of one of their models with
gradients on, all wrapping is done, as by DDP or FSDP, and as a rule no code is compiled yet: then
the modules that own the optimizers' parameters are watched. Until then, nn.Module's `__call__`
looks for this moment; afterwards it is as it was. Where compiled code makes all the calls, nothing
sees that moment: the end of the optimizers' first step serves, and that step is not recorded.

An optimizer that comes later closes steps of the watch that has its parameters. One of other models
begins a training of its own, as where a script trains one model after the other: it gets a watch of
its own, and watches end whose optimizers are gone.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hookstats._torch import (
    is_compiling_wrapper,
    makes_optimizer_state,
    takes_step_hooks,
    without_compiled_calls,
)
from hookstats.stats.messages import RUN, error_text, say
from hookstats.watching.handle import Watch

MOST_TRAININGS = 16
"""So many trainings of a script are watched: there may be one for each of its batches."""

Begin = Callable[[dict[str, nn.Module], list[Optimizer]], Watch]
"""Begins to watch models, by name, and optimizers."""


class _Training(NamedTuple):
    """What is watched together."""

    watch: Watch
    optimizers: list[weakref.ref[Optimizer]]
    models: list[weakref.ref[nn.Module]]

    def has(self, optimizer: Optimizer) -> bool:
        """Whether the models have a parameter of the optimizer."""
        models = filter(None, [model() for model in self.models])
        known = {id(p) for model in models for p in model.parameters()}
        return any(id(p) in known for p in parameters_of(optimizer))

    def is_over(self) -> bool:
        """Whether nothing can close another step."""
        return all(one() is None for one in self.optimizers)


class Automatic:
    """Calls `begin` when a training of a script begins; as a context, while it is entered.

    A process that is forked meanwhile is left alone. Whatever goes wrong is said on stderr, and the
    script goes on.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._new: list[weakref.ref[Optimizer]] = []
        self._init: Any = Optimizer.__init__
        self._call: Any = nn.Module.__call__
        self._waits = False
        self._stepped = set[int]()  # optimizers, by id, of which no call of a module was seen
        self._after_steps: Any = None
        self._process = os.getpid()
        self._going: list[_Training] = []
        self._left_out = False  # a training, as there were too many
        self.watches: list[Watch] = []
        """Those that were begun, in order."""

    def __enter__(self) -> Automatic:
        original, note, process = self._init, self._note, self._process

        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if os.getpid() == process:
                note(optimizer)

        Optimizer.__init__ = __init__  # type: ignore[method-assign, assignment]
        self._after_steps = register_optimizer_step_post_hook(self._look_after)
        return self

    def __exit__(self, *exc: object) -> None:
        Optimizer.__init__ = self._init  # type: ignore[method-assign]
        self._after_steps.remove()
        self._look(False)
        self.close()

    def close(self) -> None:
        """Close the watches that are open."""
        for training in self._going:
            self._attempt("closing the watch", training.watch.close)

    def _note(self, optimizer: Optimizer) -> None:
        self._new.append(weakref.ref(optimizer))
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
        if new and not any(id(p) in trained for p in module.parameters()):
            return
        self._go(new)

    def _look_after(self, optimizer: Optimizer, *_: object) -> None:
        if self._waits and os.getpid() == self._process and not makes_optimizer_state():
            self._attempt("looking for what is trained", lambda: self._stepped_unseen(optimizer))

    def _stepped_unseen(self, optimizer: Optimizer) -> None:
        """Watch what is trained, if all optimizers that are new have stepped unseen."""
        if all(p.grad is None for p in parameters_of(optimizer)):
            return  # it trains nothing
        self._stepped.add(id(optimizer))
        new = self._alive()
        if not all(id(one) in self._stepped for one in new):
            return
        before = len(self.watches)
        self._go(new)
        for watch in self.watches[before:]:
            watch.set_step(watch.open_step + 1)
            say("compiled code calls the model: its first step is not recorded", RUN)

    def _alive(self) -> list[Optimizer]:
        return [optimizer for optimizer in (one() for one in self._new) if optimizer is not None]

    def _go(self, new: list[Optimizer]) -> None:
        """Watch what the new optimizers train, or have them close steps of a watch."""
        self._look(False)
        self._stepped.clear()
        self._new.clear()
        others = [optimizer for optimizer in new if not self._add(optimizer)]
        if others and len(self.watches) < MOST_TRAININGS:
            self._attempt("watching", lambda: self._watch(others))
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

    def _watch(self, optimizers: list[Optimizer]) -> None:
        for over in [training for training in self._going if training.is_over()]:
            self._going.remove(over)
            self._attempt("closing the watch", over.watch.close)
        roots = roots_of({id(p) for one in optimizers for p in parameters_of(one)})
        if not roots:
            say("not watched: no module owns the parameters of the optimizers", RUN)
            return
        usable = [one for one in optimizers if takes_step_hooks(one)]
        with without_compiled_calls(roots):
            watch = self._begin(_named(roots), usable)
        self.watches.append(watch)
        closing, models = [*map(weakref.ref, usable)], [*map(weakref.ref, roots)]
        self._going.append(_Training(watch, closing, models))

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # the script is to go on
            self._look(False)
            say(f"{what} failed: {error_text(error)}", RUN)


def parameters_of(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def roots_of(trained: set[int]) -> list[nn.Module]:
    """The modules that own trained parameters and are part of no other module, largest first.

    Of a module that torch.compile wraps, the module itself counts; of one that has such wrappers
    among its parts, the parts. A module whose trained parameters all belong to modules before it,
    such as a view of some layers, is left out.
    """
    # Proxies say that they are what they stand for: `type` knows better.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    modules = [
        one
        for one in modules
        if "_modules" in one.__dict__ and not any(map(is_compiling_wrapper, one.modules()))
    ]
    parts = {id(part) for one in modules for part in one._modules.values()}
    owned = [
        (frozenset(id(p) for p in one.parameters()) & trained, one)
        for one in modules
        if id(one) not in parts
    ]
    roots, covered = [], set[int]()
    for mine, one in sorted(owned, key=lambda pair: -len(pair[0])):
        if not mine <= covered:
            covered |= mine
            roots.append(one)
    return roots


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
