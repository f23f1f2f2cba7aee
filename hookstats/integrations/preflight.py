"""Preflight: checks what a script trains when its first backward begins, and ends the script."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats._torch import takes_step_hooks
from hookstats.hooks.steps import parameters_of
from hookstats.integrations.automatic import roots_of
from hookstats.preflight.check import examined
from hookstats.preflight.finding import Line
from hookstats.preflight.given import Given, unwrapped
from hookstats.preflight.training import Backward
from hookstats.watching.out import nowhere

_MOST = 3
"""Of how many parts a model may consist that the script calls one by one."""

Tell = Callable[[nn.Module, Sequence[Line]], object]
"""Gets a model, and the results of its checks."""


class Checked(BaseException):
    """Ends a script whose model was checked; no `except Exception` of the script takes it."""


@dataclass
class _Call:
    """A call of a module by no other module, with copies of its arguments."""

    module: nn.Module
    given: Given


class Preflight:
    """Notes optimizers and calls of models; at the first backward of what is trained, checks.

    A model that the script calls in more than three parts is not checked: no call stands for it.
    """

    def __init__(self, tell: Tell, batch_dim: int | None, causal: bool | None) -> None:
        self._tell = tell
        self._batch_dim = batch_dim
        self._causal = causal
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._calls: dict[int, _Call] = {}
        self._depth = 0
        self._undo: Callable[[], None] = lambda: None
        self._process = os.getpid()
        self.in_parts: list[str] = []
        """The classes of the models whose parts are called one by one."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In this context, the first backward raises `Checked` once the models are checked.
        Watches of the script write no run."""
        init: Any = Optimizer.__init__
        call: Any = nn.Module.__call__
        backward: Any = torch.autograd.backward

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            if not self._depth and torch.is_grad_enabled():
                self._note(module, args, kwargs)
            self._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        def began(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if os.getpid() == self._process:
                self._check(tensors if isinstance(tensors, Tensor) else next(iter(tensors)))
            backward(tensors, *args, **kwargs)

        with nowhere(), ExitStack() as context:
            for owner, name, new in (
                (Optimizer, "__init__", made),
                (nn.Module, "__call__", called),
                (torch.autograd, "backward", began),
            ):
                context.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, new)
            self._undo = context.close
            yield

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = unwrapped(module)
        if any(True for _ in module.parameters()):
            given = Given(args, kwargs, lambda output: None, self._batch_dim)
            self._calls[id(module)] = _Call(module, given.copied().measured())

    def _check(self, loss: Tensor) -> None:
        optimizers = [one for one in (known() for known in self._optimizers) if one is not None]
        optimized = [p for one in optimizers for p in parameters_of(one)]
        roots, trained = roots_of(optimized), {id(p) for p in optimized}
        if not roots:
            return
        self._undo()
        backward = Backward.of(loss, roots, optimizers, again=lambda: None)
        reaches_any = any(one is not None for one in backward.gradients.values())
        for root in roots:
            own = {id(p) for p in root.parameters()} & trained
            calls = self._calls_of(root, own)
            if not calls:
                self.in_parts.append(type(unwrapped(root)).__name__)
            for call in calls:
                lines = examined(
                    *(call.module, call.given),
                    [one for one in optimizers if takes_step_hooks(one)],
                    causal=self._causal,
                    backward=backward if not reaches_any or _has(call.module, backward) else None,
                )
                self._tell(call.module, lines)
        raise Checked

    def _calls_of(self, root: nn.Module, trained: set[int]) -> list[_Call]:
        """The calls of the root or of few of its parts, which have most of what is trained."""
        parts = {id(part) for part in root.modules()}
        own = {
            key: trained & {id(p) for p in call.module.parameters()}
            for key, call in self._calls.items()
            if key in parts
        }
        largest = sorted(own, key=lambda key: -len(own[key]))[:_MOST]
        covered = set[int]().union(*(own[key] for key in largest))
        if 10 * len(covered) < 9 * len(trained):
            return []
        return [self._calls[key] for key in largest if own[key]]


def _has(module: nn.Module, backward: Backward) -> bool:
    return any(backward.gradients.get(id(p)) is not None for p in module.parameters())
