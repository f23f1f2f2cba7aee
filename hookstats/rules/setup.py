"""Setup: what a training run begins with: parameters as they were initialised, optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Rows(NamedTuple):
    """Rows of a weight that are unlike the others, `UNLIKE` times larger or smaller, or zero."""

    many: int
    first: int
    ratio: float
    """The rms of the most unlike row, by the median of all rows; 0 for rows of zeros."""


class Weight(NamedTuple):
    """A parameter before the first step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    """Whether it requires a gradient."""
    group: int | None
    """The parameter group that has it, counted over all optimizers; None: no optimizer has it."""
    rms: float | None
    """None where the values are not known: of parameters that are spread over ranks, or lazy."""
    constant: bool
    """Whether all values are equal."""
    rows: Rows | None
    """None where all rows are alike, or of parameters with one dimension."""


class Group(NamedTuple):
    """A parameter group of an optimizer."""

    algorithm: str
    """The name of the optimizer's class."""
    momentum: float
    weight_decay: float
    epsilon: float = 0.0
    """What is added to a gradient's size before a step is divided by it; 0 if unknown."""
    values: int = 0
    """How many values its parameters have."""


class Setup(NamedTuple):
    """What a training run begins with; `watching.setup` makes it, runs keep it in their headers.

    Where nothing is known, it is empty.
    """

    modules: Mapping[str, str] = MappingProxyType({})
    """The type of each module by its name, in the order of the model."""
    weights: tuple[Weight, ...] = ()
    groups: tuple[Group, ...] = ()
    """() where no optimizer was given: then nothing is known of groups."""
    dropouts: Mapping[str, float] = MappingProxyType({})
    """The probability of each dropout by its name."""

    def to_dict(self) -> dict[str, Any]:
        """The setup without `modules`, which a header has anyway, as JSON-able types."""
        return {
            "weights": [list(weight._replace(rows=None)) for weight in self.weights],
            "rows": {w.name: list(w.rows) for w in self.weights if w.rows is not None},
            "groups": [list(group) for group in self.groups],
            "dropouts": dict(self.dropouts),
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any]) -> Setup:
        """The setup in the header of a run; empty where it has none."""
        found = header.get("setup")
        if not isinstance(found, Mapping):
            return cls()
        rows = {name: Rows(*values) for name, values in found["rows"].items()}
        weights = (Weight(*values) for values in found["weights"])
        return cls(
            header.get("modules") or {},
            tuple(w._replace(shape=tuple(w.shape), rows=rows.get(w.name)) for w in weights),
            tuple(Group(*values) for values in found["groups"]),
            found.get("dropouts") or {},
        )

    def type_of(self, parameter: str) -> str:
        """The type of the module that has a parameter; "" if unknown."""
        return self.modules.get(parameter.rpartition(".")[0], "")


UNLIKE = 8.0
"""How many times larger or smaller than the median a row is that is unlike the others."""
