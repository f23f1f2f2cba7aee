"""A graph on the CPU: the operators that a block calls, to be called again with the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hookstats.kernels import backends, native


class Graph(TorchDispatchMode):
    """What is called in its block runs, and runs again at each `replay`, which runs no Python of
    the block's: neither hooks nor autograd."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, made))
        return made

    def replay(self) -> None:
        with torch._C._AutoDispatchBelowAutograd():
            for function, args, kwargs, made in self._calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextmanager
def capturing(patch: pytest.MonkeyPatch) -> Iterator[Graph]:
    """Have what is called in the block become a graph, as `torch.cuda.graph` has, on the CPU."""
    with Graph() as graph, patch.context() as during:
        row = backends.CPU._replace(is_capturing=lambda: True)
        during.setitem(backends.BACKENDS, "cpu", row)
        yield graph


def use_python_hooks(patch: pytest.MonkeyPatch) -> None:
    """The C++ hooks ask the kernels of the CPU, which know of no capture."""
    patch.setattr(native, "hooks", None)
