"""A rule about training in fp16: gradients that underflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least

_HALF = "float16"


@dataclass(frozen=True, kw_only=True)
class Underflow(Rule):
    """Gradients in fp16 are so small that they lose their digits, or become zero.

    The rms of a gradient of an output is below `least`; the smallest number of fp16 with all its
    digits is 2**-14, the smallest of all 2**-24 ("Mixed Precision Training", Micikevicius et al.,
    2018, which has the loss scaled therefore). The alert is about the first tensor in backward
    order; its value is the rms.
    """

    name: ClassVar[str] = "underflow"
    advice: ClassVar[str] = "use torch.amp.GradScaler, or bf16"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    least: float = 2.0**-20
    patience: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "least")

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        small = history.rms < self.least
        for i in np.flatnonzero(small).tolist():
            if history.plain_kinds[i] == "grad_output" and record.sites[i].dtype == _HALF:
                says = f"has an rms of {history.rms[i]:.2g}, too small for the digits of fp16"
                yield self.alert(record, i, says, history.rms[i])
                return
