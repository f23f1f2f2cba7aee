"""Loop: what a script's own loop tells of its training: losses, and norms before clipping."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from hookstats._torch import current_graph_task_id
from hookstats.watching.scalars import OnDevice, as_scalar

LOSS = "loss"
BEFORE_CLIPPING = "grad_norm_before_clipping"

_Scalar = float | OnDevice | None


class Loop:
    """Notes what torch's functions are called with, in the context `noting`."""

    def __init__(
        self, after_backward: Callable[[], object], look: Callable[[Tensor], object]
    ) -> None:
        """after_backward: called after each backward of the script. look: called before it, with
        the loss and its graph."""
        self._after_backward, self._look = after_backward, look
        self._losses: list[_Scalar] = []
        self._norms: list[_Scalar] = []
        self._scaled: tuple[Callable[[], Tensor | None], Tensor] | None = None

    def take(self) -> dict[str, float | OnDevice]:
        """The loss and the norm since the last call of this: each where there was exactly one."""
        found = {LOSS: self._losses, BEFORE_CLIPPING: self._norms}
        self._losses, self._norms = [], []
        single = {name: values[0] for name, values in found.items() if len(values) == 1}
        return {name: value for name, value in single.items() if value is not None}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """In this context, the functions tell of their calls."""
        with ExitStack() as context:
            for place, name, note in (
                (torch.autograd, "backward", self._backward),
                (torch.amp.GradScaler, "scale", self._scale),
                (clip_grad, "clip_grad_norm_", self._clip_norm),
                (clip_grad, "clip_grad_value_", self._clip_value),
                (torch.nn.utils, "clip_grad_norm_", self._clip_norm),
                (torch.nn.utils, "clip_grad_value_", self._clip_value),
            ):
                original = getattr(place, name)
                setattr(place, name, _noted(original, note))
                context.callback(setattr, place, name, original)
            yield

    def _backward(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        loss = args[0] if args else kwargs.get("tensors")
        is_inside = current_graph_task_id() != -1  # a checkpoint's own, in that of the script
        if isinstance(loss, Tensor) and not is_inside:
            self._look(loss)
        original(*args, **kwargs)
        if is_inside:
            return
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0]() is loss:
            loss = scaled[1]
        self._losses.append(None if self._losses else _number(LOSS, loss))
        self._after_backward()

    def _scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, Tensor):
            self._scaled = weakref.ref(scaled), outputs.detach()
        return scaled

    def _clip_norm(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        if kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0) == 2:
            self._norms.append(_number(BEFORE_CLIPPING, norm))
        return norm

    def _clip_value(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with suppress(Exception), torch.no_grad():  # such as of sparse gradients
            gradients = [p.grad for p in parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            self._norms.append(_number(BEFORE_CLIPPING, norm))
        return original(parameters, *args, **kwargs)


def _noted(original: Any, note: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return note(original, *args, **kwargs)

    return call


def _number(name: str, value: object) -> _Scalar:
    with suppress(Exception):
        return as_scalar(name, value)
    return None
