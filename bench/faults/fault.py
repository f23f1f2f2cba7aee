"""Fault: one planted fault, and when it counts as found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bench.faults.plant import Changed, Start

SHARES = ("tuned", "held out", "later")
"""What rules were tuned on; what was held out meanwhile; what came when they were done."""

LATE = 32
"""The first step of faults that come in the middle of a run."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    `where` has globs of the modules where the fault is, () if it has no layer; a rule must name one
    of these modules, or a parameter of one. Without a layer, one of the rules `says` must speak,
    about whatever it is about. `last` is the last step of a fault that passes.
    """

    name: str
    base: str
    where: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    step: int = 0
    last: int | None = None
    start: Start | None = None
    batch: Changed | None = None
    severity: str = "warning"
    """The least that a rule must say: "note" where the fault is no harm yet."""
    slow: int = 0
    """How many steps after its first it may take until the fault shows, beyond what is usual."""
    later: bool = False
    """Whether the fault was planted after all rules had been tuned."""

    @property
    def family(self) -> str:
        """init, data, optim, loss, loop, mode, numerics or arch."""
        return self.name.partition("/")[0]

    @property
    def share(self) -> str:
        """One of `SHARES`: every second fault, by its name, was left out while rules were tuned."""
        if self.later:
            return "later"
        return SHARES[hashlib.sha256(self.name.encode()).digest()[0] % 2]
