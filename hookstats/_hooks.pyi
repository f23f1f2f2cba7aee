"""Types of the C++ hooks, csrc/hooks/python.cpp."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

State = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

TORCH_VERSION: str
PARAMS_SIZE: int

class Arena:
    recording: bool
    front: int
    def __init__(self, update_cpu: int) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...

class Site:
    forwards: int
    observed: int
    backwards: int
    missing: int
    disabled: bool
    def __init__(self, arena: Arena, owner: object) -> None: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    def skip(self, reason: str) -> None: ...
    def bind(
        self,
        x: Tensor,
        channel_dim: int | None,
        states: tuple[State, State],
        calls: tuple[Tensor, Tensor],
    ) -> None: ...

class OutputHook:
    def __init__(self, arena: Arena, python: object, values: Any, gradients: Any) -> None: ...

class InputHook:
    def __init__(self, arena: Arena, python: object, values: Any, gradients: Any) -> None: ...

def await_gradient(site: Site, x: Tensor) -> None: ...
def set_traced(type: type, traced: Callable[..., object]) -> None: ...
