"""Given: how the model is called with the batch, and batches that differ from it in one respect."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookstats._torch import WRAPPED
from hookstats.hooks.leaves import argument_leaves, leaves

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Given:
    """The arguments of the model's call, its loss, and where samples and times lie.

    `samples` is how many samples the batch has along `batch_dim`, `times` how many tokens a sample
    has along the other of the first two dimensions; 0 where that is not known.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Tensor | None]
    batch_dim: int | None
    samples: int = 0
    times: int = 0

    @classmethod
    def of(cls, model: nn.Module, batch: Any, loss: Loss | None, batch_dim: int | None) -> Given:
        """What the arguments of `check` stand for.

        Raises:
            ValueError: the loss takes a target, and the batch has none.
        """
        of_output: Callable[[Any], Tensor | None] = own_loss if loss is None else loss
        if loss is not None and _takes_target(loss):
            if not (_is_several(batch) and len(batch) > 1):
                raise ValueError(
                    f"batch = {_shown(batch)}: expected (inputs, target) for a loss of (output, "
                    "target), or a loss that takes the output alone"
                )
            *batch, target = batch
            of_output = lambda output: loss(output, target)  # noqa: E731
        args, kwargs = _call(model, batch)
        return cls(args, kwargs, of_output, batch_dim).measured()

    def measured(self) -> Given:
        """With the numbers of samples and times of the first tensor that has them."""
        if self.batch_dim is None:
            return self
        for tensor in self.tensors():
            if tensor.dim() > self.batch_dim:
                time = 1 - self.batch_dim
                times = tensor.shape[time] if tensor.dim() > 1 and time >= 0 else 0
                return replace(self, samples=tensor.shape[self.batch_dim], times=times)
        return self

    def tensors(self) -> Iterator[Tensor]:
        for _, tensor in argument_leaves(self.args, self.kwargs):
            yield tensor

    @property
    def tokens(self) -> Tensor | None:
        """The token ids, integers [samples, times] or [times, samples], if the batch has any."""
        first = next(self.tensors(), None)
        is_integer = first is not None and not (first.is_floating_point() or first.is_complex())
        is_tokens = first is not None and is_integer and first.dtype != torch.bool
        return first if is_tokens and first is not None and first.dim() == 2 else None

    def sample_dim(self, tensor: Tensor) -> int | None:
        """The dimension of a tensor that has the samples."""
        if self.batch_dim is None or not self.samples:
            return None
        dim = self.batch_dim if tensor.dim() > self.batch_dim else 0
        return dim if tensor.dim() and tensor.shape[dim] == self.samples else None

    def time_dim(self, tensor: Tensor) -> int | None:
        """The dimension of a tensor with samples that has the times."""
        if self.sample_dim(tensor) != self.batch_dim or self.batch_dim not in (0, 1):
            return None
        dim = 1 - self.batch_dim
        return dim if tensor.dim() > 1 and tensor.shape[dim] == self.times else None

    def changed(self, change: Callable[[Tensor], Tensor]) -> Given:
        kwargs = {name: _mapped(value, change) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(_mapped(one, change) for one in self.args), kwargs=kwargs)

    def copied(self) -> Given:
        return self.changed(lambda tensor: tensor.detach().clone())

    def call(self, model: nn.Module) -> Any:
        """The model's output for copies of the tensors."""
        given = self.copied()
        return model(*given.args, **given.kwargs)


def own_loss(output: Any) -> Tensor | None:
    """The loss that a model has in its output: of the name "loss", or the only scalar."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, Tensor):
        return named
    scalars = [one for _, one in leaves(output) if one.numel() == 1 and one.requires_grad]
    return scalars[0].reshape(()) if len(scalars) == 1 else None


def _takes_target(loss: Loss) -> bool:
    """Whether a loss takes a second argument, without which it cannot be called."""
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in known if one.kind in positional and one.default is one.empty]
    return len(needed) == 2


def _call(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword arguments that a batch stands for."""
    if _is_several(batch):
        return tuple(batch), {}
    if isinstance(batch, Mapping) and _takes_names(model, batch):
        return (), dict(batch)
    return (batch,), {}


def _is_several(batch: Any) -> bool:
    """Whether a batch is a sequence of arguments; a named tuple, such as PackedSequence, is one."""
    return isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields")


def _takes_names(model: nn.Module, batch: Mapping[Any, Any]) -> bool:
    known = inspect.signature(model.forward).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return all(isinstance(name, str) for name in batch)
    return all(name in known for name in batch)


def _shown(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor of {list(batch.shape)}"
    return f"a {type(batch).__name__}"


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A structure with other tensors; named tuples and other objects stay as they are."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, change) for item in value)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def floats(output: Any) -> Sequence[Tensor]:
    """The floating-point tensors in an output, without scalars."""
    return [one.detach() for _, one in leaves(output) if one.is_floating_point() and one.dim()]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module in the wrappers of compilers and of data parallelism."""
    while True:
        children = dict(module.named_children())
        inner = next((children[name] for name in children if name in WRAPPED), None)
        if inner is None and list(children) == ["module"] and not _owns(module):
            inner = children["module"]
        if inner is None:
            return module
        module = inner


def _owns(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
