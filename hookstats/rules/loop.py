"""Rules about the training loop: what it does with gradients and steps, and in which mode it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hookstats.records.alerts import Alert, Severity
from hookstats.records.record import StepRecord
from hookstats.rules.facts import Fact, LoopFact
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least

_SAYS: dict[str, tuple[str, str, str, Severity]] = {
    "none": (
        "param_grad",
        "is missing when the optimizer steps, and so are all {many} of its gradients",
        "call backward on the loss of this model, then step; call zero_grad before backward, not "
        "between backward and step",
        "error",
    ),
    "foreign": (
        "param",
        "is in no optimizer: the {many} parameters of the one that watch() was given are those of "
        "another model, and get no gradient",
        "create the optimizer after the model, from the parameters of the model that you train",
        "error",
    ),
    "again": (
        "param_grad",
        "is that of the step before: the optimizer steps twice for one backward",
        "call step once per backward",
        "warning",
    ),
    "written": (
        "param",
        "is written to between two steps, not by its optimizer{others}",
        "nothing, where weights are meant to be loaded, clipped, masked, averaged, or swapped for "
        "an evaluation and back",
        "note",
    ),
}
"""By what happens: the kind of the tensor that it is said of, what is said, what helps, how bad."""


@dataclass(frozen=True, kw_only=True)
class Loop(Rule):
    """The training loop uses gradients or optimizers in a way that cannot be meant.

    For three steps in a row no parameter of an optimizer had a gradient, be they those of another
    model or not: an error. Three times a step used the gradients of the step before, which no
    backward had changed. A note says which parameters were first written to between two steps, as
    where weights are loaded, clipped or averaged. All that is told by the identity of tensors,
    their addresses, and the version that torch counts for changes in place, so not for those
    through ``.data``; no tensor is read. `Accumulation` says in the same way that gradients are not
    zeroed. The alert's value is the number of parameters.
    """

    name: ClassVar[str] = "loop"
    advice: ClassVar[str] = "zero_grad, backward and step, each once and in this order"

    def check_fact(self, step: int, fact: Fact, history: History) -> Iterator[Alert]:
        if isinstance(fact, LoopFact) and fact.what in _SAYS:
            kind, says, helps, severity = _SAYS[fact.what]
            key, says = (fact.names[0], kind), says.format(many=fact.many, others=_others(fact))
            yield self.about(key, step, None, says, fact.many, severity=severity, advice=helps)


def _others(fact: LoopFact) -> str:
    """The other parameters of a fact, as the end of a sentence."""
    if fact.many == 1:
        return ""
    more = fact.many - len(fact.names)
    named = ", ".join(map(repr, fact.names[1:])) + f" and {more} more" * (more > 0)
    return f", and so {'is' if fact.many == 2 else 'are'} {named}"


@dataclass(frozen=True, kw_only=True)
class Mode(Rule):
    """Training goes on in eval mode, or a batch norm has next to nothing to normalise by.

    All dropouts and all batch norms whose weights are trained are in eval mode in two steps in a
    row: dropouts do nothing, and batch norms use averages that no longer change. Or a batch norm in
    training mode has `values` values per channel or fewer in each of the first steps, as where the
    batch is tiny: their mean and deviation are noise, and two values always become 1 and -1. The
    alert's value is the number of modules, or that of the values.
    """

    name: ClassVar[str] = "mode"
    advice: ClassVar[str] = "call model.train() before training, and again after each evaluation"

    values: int = at_least(1, 4)
    patience: int = 4

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > 2 * self.patience:
            return
        for kind, sites in history.outputs_of.items():
            if "BatchNorm" not in kind:
                continue
            for site in sites:
                many = float(history.columns("count")[site]) / record.sites[site].channels
                many /= max(int(record.observed[site]), 1)
                if many <= self.values and self._normalises(record, history, site):
                    says = f"is normalised over {many:.3g} values per channel: their mean is noise"
                    helps = "use a larger batch, or GroupNorm or LayerNorm, which need none"
                    yield self.alert(record, site, says, many, advice=helps)

    def _normalises(self, record: StepRecord, history: History, site: int) -> bool:
        """Whether a batch norm takes the mean of the batch: the means of its outputs are its
        biases, which are next to zero at first."""
        rows = slice(*record.offsets[site : site + 2])
        means = np.abs(history.channels("mean")[rows])
        return bool(means.max() <= 0.2 * history.rms[site])

    def check_fact(self, step: int, fact: Fact, history: History) -> Iterator[Alert]:
        if isinstance(fact, LoopFact) and fact.what == "eval":
            kind = history.setup.modules.get(fact.names[0], "module")
            says = f"is that of a {kind} in eval mode while the optimizer steps"
            if fact.many > 1:
                says += f", and all {fact.many} dropouts and batch norms are in eval mode"
            yield self.about((fact.names[0], "output"), step, None, says, fact.many)
