"""Call and TracedTensor: what `trace` says of a module's call, and of a tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from hookstats._torch import is_plain
from hookstats.hooks.readable import local_part, unreadable
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.channel_stats import ChannelStats


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that was seen, and its statistics where they were taken.

    Attributes:
        name: of a call's tensors "input", "input[1]", "output.logits", ... as `watch` names them;
            of a gradient the qualified name of its parameter.
        dtype: "float32", ...
        mean, std: over the finite values, the population's; None for what was not read: inputs,
            what is not floating-point, what has no plain memory.
        nonfinite: the number of NaNs and infinities, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None = None
    std: float | None = None
    nonfinite: int | None = None

    @classmethod
    def of(cls, name: str, tensor: Tensor, read: bool) -> TracedTensor:
        """What is to be said of `tensor`; read: with its statistics."""
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
        name: the module's qualified name, "" the root.
        type: its class.
        index: how many calls of it came before.
        depth: how many modules were under way when it began.
        outputs: None of a call that did not return.
        error: then what was raised, if that is known.
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
        """Of what it returned, the first tensor with statistics, or else the first; None without
        any."""
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
        """Its fields, `mean` and `std`, in plain Python types."""
        return asdict(self) | {"mean": self.mean, "std": self.std}

    def to_row(self) -> tuple[Any, ...]:
        """It as one flat row, under `CALL_COLUMNS`: all shapes, the rest of `output`."""
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
    if not tensor.is_floating_point() or unreadable(tensor) is not None:
        return None
    try:
        return channel_stats(tensor if is_plain(tensor) else local_part(tensor))
    except ValueError:  # a dtype without kernels, a meta tensor
        return None
