"""Modules whose outputs are views or not, and what is done with their outputs afterwards."""

from __future__ import annotations

from collections.abc import Callable

from support.modules import Lambda
from torch import Tensor, nn

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # with the channel dimension
    "no view": (lambda: nn.Linear(6, 5), (4, 6), -1),
    "biased linear": (lambda: nn.Linear(6, 5), (2, 4, 6), -1),
    "flatten": (nn.Flatten, (2, 4, 6), -1),
    "unbatched convolution": (lambda: nn.Conv2d(2, 3, 1), (2, 4, 5), 0),
    "transposed": (lambda: Lambda(lambda x: (x * 2).transpose(1, 2)), (2, 4, 6), -1),
    "part": (lambda: Lambda(lambda x: (x * 2)[:, 1:, ::2]), (2, 4, 6), -1),
    "part of transposed": (lambda: Lambda(lambda x: (x.t() * 2)[1:, 2]), (6, 4), -1),
    "view of a view": (lambda: Lambda(lambda x: (x * 2)[1:].flatten()), (3, 4), -1),
    "its own input": (nn.Identity, (3, 4), -1),
}

CHANGES: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "none": lambda y, inplace: y * 3,
    "relu": lambda y, inplace: y.relu_() if inplace else y.relu(),
    "several": lambda y, inplace: y.mul_(3).add_(1).relu_() if inplace else y.mul(3).add(1).relu(),
    "plus equals": lambda y, inplace: y.__iadd__(1) * 2 if inplace else (y + 1) * 2,
    "used before": lambda y, inplace: (y * 2) + (y.relu_() if inplace else y.relu()),
    "a part": lambda y, inplace: in_part(y) if inplace else in_part(y.clone()),
}


def in_part(y: Tensor) -> Tensor:
    y[1:].mul_(5)
    return y
