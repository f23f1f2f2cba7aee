"""Call and TracedTensor: what `trace` records of a module's call, and of a tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from hookstats.hooks.readable import classify
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.channel_stats import ChannelStats


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that passed, and its statistics if they were taken.

    Attributes:
        name: for a call's tensors "input", "input[1]", "output.logits", ... as `watch` names them;
            for a gradient the qualified name of its parameter.
        dtype: "float32", ...
        mean, std: those of the finite values as a population; None for tensors that are not read:
            inputs, tensors that are not floating-point, tensors whose memory is not their values.
        nonfinite: the number of NaNs and infinities; None if the tensor is not read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None = None
    std: float | None = None
    nonfinite: int | None = None

    @classmethod
    def of(cls, name: str, tensor: Tensor, read: bool) -> TracedTensor:
        """The record of `tensor`; read: whether to take its statistics."""
        stats = _stats(tensor) if read else None
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if stats is None:
            return cls(name, shape, dtype)
        nonfinite = int(stats.nan + stats.posinf + stats.neginf)
        return cls(name, shape, dtype, float(stats.mean), float(stats.std), nonfinite)


@dataclass
class Call:
    """One call of a module.

    Attributes:
        name: the module's qualified name; "" is the root.
        type: the name of the module's class.
        index: the number of earlier calls of the module.
        depth: the number of modules that were under way when the call began.
        outputs: None if the call did not return.
        error: what the call raised, if it did and this is known.
    """

    name: str
    type: str
    index: int
    depth: int
    inputs: tuple[TracedTensor, ...] = ()
    outputs: tuple[TracedTensor, ...] | None = None
    error: str | None = None

    @property
    def output(self) -> TracedTensor | None:
        """The first returned tensor with statistics, or else the first returned tensor; None
        without any."""
        outputs = self.outputs or ()
        read = [tensor for tensor in outputs if tensor.mean is not None]
        return next(iter((*read, *outputs)), None)

    @property
    def mean(self) -> float | None:
        """The mean of `output`."""
        return None if self.output is None else self.output.mean

    @property
    def std(self) -> float | None:
        """The standard deviation of `output`."""
        return None if self.output is None else self.output.std

    def to_dict(self) -> dict[str, Any]:
        """The fields, `mean` and `std`, in plain Python types."""
        return asdict(self) | {"mean": self.mean, "std": self.std}

    def to_row(self) -> tuple[Any, ...]:
        """The call as one flat row, under `CALL_COLUMNS`: all shapes, and the rest of `output`."""
        output = self.output
        return (
            *(self.name, self.type, self.index, self.depth),
            *(_shapes(self.inputs), _shapes(self.outputs)),
            None if output is None else output.dtype,
            *(self.mean, self.std),
            None if output is None else output.nonfinite,
            self.error,
        )


CALL_COLUMNS = (
    *("name", "type", "index", "depth", "input", "output"),
    *("dtype", "mean", "std", "nonfinite", "error"),
)
GRADIENT_COLUMNS = tuple(field.name for field in fields(TracedTensor))


def _shapes(tensors: tuple[TracedTensor, ...] | None) -> tuple[tuple[int, ...], ...] | None:
    return None if tensors is None else tuple(tensor.shape for tensor in tensors)


def _stats(tensor: Tensor) -> ChannelStats | None:
    if not tensor.is_floating_point() or isinstance(values := classify(tensor), str):
        return None
    try:
        return channel_stats(values)
    except ValueError:  # a dtype without statistics, or a meta tensor
        return None
