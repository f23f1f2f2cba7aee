"""Types of the C++ hooks, csrc/hooks/python.cpp."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hookstats.stats.state import State

PARAMS_SIZE: int
REASONS: dict[str, str]

class Arena:
    recording: bool
    skips_evaluation: bool
    routes: bool
    front: int
    @property
    def seconds(self) -> float: ...
    def __init__(self, kernels: dict[str, int]) -> None: ...
    def set_mask(self, mask: Tensor | None) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...

class Site:
    observed: int
    backwards: int
    missing: int
    disabled: bool
    def __init__(self, arena: Arena, owner: object) -> None: ...
    @property
    def forwards(self) -> int: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    @property
    def unmasked(self) -> int: ...
    def skip(self, reason: str) -> None: ...
    def settle(self, reason: str | None, whole: bool = False) -> None: ...
    def arrive(self, first: bool, reason: str | None, whole: bool = False) -> None: ...
    def expect(self, sizes: Sequence[int]) -> None: ...
    def bind(
        self,
        x: Tensor,
        channel_dim: int | None,
        states: tuple[State, State],
        calls: tuple[Tensor, Tensor],
        marks: tuple[Tensor, Tensor] | None,
    ) -> None: ...

class OutputHook:
    def __init__(
        self, arena: Arena, python: object, values: Any, gradients: Any, router: object
    ) -> None: ...

class InputHook:
    def __init__(
        self, arena: Arena, python: object, values: Any, gradients: Any, router: object
    ) -> None: ...

class Parameters:
    def __init__(self, arena: Arena) -> None: ...
    def add(self, parameter: Tensor) -> None: ...
    def add_watched(
        self,
        parameter: Tensor,
        owner: Callable[[], object],
        key: str,
        value: Site | None,
        gradient: Site | None,
    ) -> None: ...
    def observe(self, groups: list[list[Tensor]], scale: object) -> bool: ...

def await_gradient(site: Site, x: Tensor) -> str | None: ...
def set_traced(type: type, traced: Callable[..., object]) -> None: ...
