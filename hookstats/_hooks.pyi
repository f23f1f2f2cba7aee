"""Types of the C++ hooks, csrc/hooks/python.cpp."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hookstats.stats.state import State

PARAMS_SIZE: int

class DoubleBuffer:
    recording: bool
    skips_evaluation: bool
    phase: int
    front: int
    clock: int
    @property
    def seconds(self) -> float: ...
    def __init__(self, kernels: dict[str, int]) -> None: ...
    def set_mask(self, mask: Tensor | None) -> None: ...
    def depth(self) -> int: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...

class Site:
    observed: int
    backwards: int
    missing: int
    disabled: bool
    def __init__(self, buffers: DoubleBuffer, owner: object) -> None: ...
    @property
    def forwards(self) -> int: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    @property
    def unmasked(self) -> int: ...
    def skip(self, reason: str) -> None: ...
    def count(self, reason: str | None, whole: bool = False) -> None: ...
    def count_gradient(self, first: bool, reason: str | None, whole: bool = False) -> None: ...
    def set_expected_sizes(self, sizes: Sequence[int]) -> None: ...
    def set_plan(
        self,
        x: Tensor,
        channel_dim: int | None,
        states: tuple[State, State],
        calls: tuple[Tensor, Tensor],
        occupancy: tuple[Tensor, Tensor] | None,
        rows: tuple[int, int, int],
    ) -> None: ...
    def accumulate(self, x: Tensor) -> bool: ...

class ModuleHook:
    def __init__(
        self,
        buffers: DoubleBuffer,
        python: object,
        values: Any,
        gradients: Any,
        phase: int,
        of_inputs: bool,
    ) -> None: ...

class Parameters:
    def __init__(self, buffers: DoubleBuffer) -> None: ...
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
