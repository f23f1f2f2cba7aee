"""Rules about training in fp16: gradients that underflow, a loss scale that collapses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import SCALAR, Alert
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


@dataclass(frozen=True, kw_only=True)
class LossScale(Rule):
    """A loss scaler skips step after step.

    Gradients of outputs overflow, and the steps that the scaler skipped are in this record: it has
    `factor` times the calls of an average step. A scaler that looks for its scale skips one now and
    then (`NonFinite` has a note of it). Where no step follows at all, scalars tell that are logged
    again in a step that stays open, for `iterations` iterations of as many micro-batches as any
    step had, or `first` where there were fewer than 8 steps. The alert's value is the calls by
    those of an average step, or the number of iterations.
    """

    name: ClassVar[str] = "loss scale"
    advice: ClassVar[str] = "look for the first infinite tensor (non-finite names it); use bf16"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    factor: float = 4.0
    iterations: int = 2
    first: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "factor", "iterations", "first")

    def check_scalars(
        self, step: int, values: Mapping[str, float], history: History
    ) -> Iterator[Alert]:
        if history.unclosed >= (self.iterations if history.pushed >= 8 else self.first):
            name = next(iter(values))
            says = (
                f"comes again without a step: {history.unclosed} iterations in a row ended none, "
                "as where a loss scaler skips each"
            )
            yield self.about((name, SCALAR), step, None, says, history.unclosed)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        many = np.flatnonzero(history.calls >= self.factor)
        if not len(many):
            return
        bad = history.columns("nan") + history.columns("posinf") + history.columns("neginf")
        for i in many.tolist():
            if history.plain_kinds[i] == "grad_output" and bad[i]:
                calls = float(history.calls[i])
                says = f"overflows, and this step has {calls:.3g} times the usual calls"
                yield self.alert(record, i, says, calls)
                return
