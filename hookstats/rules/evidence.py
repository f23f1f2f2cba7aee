"""evidence(): what keeps a loss where it is, and what was ruled out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hookstats.rules.history import History
from hookstats.rules.loss_graph import findings
from hookstats.rules.rates import always_clipped, rates_of, relative_updates

_SMALL = 1e-5
"""The share of a weight that a step changes, below which training hardly moves."""

_ADVICE = (
    "what is left are labels and data: see whether the model learns one small batch by heart, and "
    "whether inputs and labels belong together"
)


class _Sign(NamedTuple):
    """One thing that keeps losses where they are, as a run shows it."""

    says: str
    """With the number that tells."""
    remedy: str = ""
    """What helps; "" where all is well."""


def evidence(loss: str, history: History) -> tuple[str, str]:
    """What to say of a loss that does not fall: the end of the sentence, and the advice."""
    signs = [
        *_rates(history),
        *_gradients(history),
        *_updates(history),
        *_writes(history),
        *_modes(history),
        *_graph(loss, history),
        *_inputs(history),
    ]
    wrong = [sign for sign in signs if sign.remedy]
    fine = [sign.says for sign in signs if not sign.remedy]
    says = f"; suspect: {', '.join(sign.says for sign in wrong)}" if wrong else ""
    says += f"; ruled out: {', '.join(fine)}" if fine else ""
    return says, "; ".join(sign.remedy for sign in wrong) or (_ADVICE if fine else "")


def _rates(history: History) -> Iterator[_Sign]:
    rates = rates_of(history)
    if not rates:
        return
    now, most = max(past[-1] for past in rates), max(max(past) for past in rates)
    if now < 0.01 * most or not now:
        says = f"a learning rate that fell from {most:.3g} to {now:.2g}"
        yield _Sign(says, "step the schedule once per epoch, or give it the number of steps")
    else:
        yield _Sign(f"a vanished learning rate (it is {now:.3g})")


def _gradients(history: History) -> Iterator[_Sign]:
    """Which of the parameters that an optimizer has ever got a gradient."""
    setup = history.setup
    if not setup.weights or "param_grad" not in history.plain_kinds:
        return
    trained = [w.name for w in setup.weights if w.trained and w.group is not None]
    came = sum(history.knows((n, "param_grad")) or n in history.unread for n in trained)
    if came == len(trained):
        yield _Sign(f"missing gradients ({came} of {len(trained)} parameters have theirs)")
    else:
        says = f"gradients that reach {came} of {len(trained)} parameters"
        yield _Sign(says, "look for what cuts the graph: detach, no_grad, layers that never run")


def _updates(history: History) -> Iterator[_Sign]:
    """How far the next step moves the weights."""
    ratios = relative_updates(history, history.rms) if history.pushed else {}
    if not ratios:
        return
    middle = float(np.median(list(ratios.values())))
    if middle >= _SMALL:
        yield _Sign(f"tiny steps (each changes weights by {middle:.2g} of their size)")
        return
    if not middle and any(past[-1] for past in rates_of(history)):
        many = sum(not ratio for ratio in ratios.values())
        says = f"gradients that are exactly zero, those of {many} of {len(ratios)} weights"
        yield _Sign(says, "look for what lets none pass: dead units, a constant, weights of zero")
        return
    bound = always_clipped(history)
    says = f"steps that change weights by {middle:.2g} of their size"
    says += f", of gradients that are always clipped to {bound:.3g}" if bound else ""
    yield _Sign(says, "raise max_norm" if bound else "multiply the learning rate by ten")


def _writes(history: History) -> Iterator[_Sign]:
    if "rewritten" in history.in_loop:
        says = "weights that something else than their optimizer writes to before each step"
        yield _Sign(says, "see what else assigns to them")


def _modes(history: History) -> Iterator[_Sign]:
    types = history.setup.modules.values()
    if "eval" in history.in_loop:
        yield _Sign("modules in eval mode", "call model.train() after each evaluation")
    elif history.graphs and any("Dropout" in kind or "BatchNorm" in kind for kind in types):
        yield _Sign("eval mode")


def _graph(loss: str, history: History) -> Iterator[_Sign]:
    graph = history.graphs.get(loss)
    if graph is not None and graph.is_complete and not any(findings(graph)):
        yield _Sign(f"a loss that is not of the outputs ({len(graph.nodes)} operators seen)")


def _inputs(history: History) -> Iterator[_Sign]:
    past = history.inputs
    if past.site is None:
        return
    if past.constant >= 2:
        yield _Sign("samples that are all the same", "look at what makes a batch")
    elif past.repeated < 5:
        yield _Sign("batches that come again")
