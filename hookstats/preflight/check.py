"""check(): a preflight of a model on one batch, before the training begins."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookstats._torch import is_plain
from hookstats.preflight import dependence, settings, training
from hookstats.preflight.finding import Finding, Line
from hookstats.preflight.given import Given, Loss, unwrapped
from hookstats.preflight.recording import of_recording
from hookstats.preflight.untouched import untouched
from hookstats.stats.printable import printable
from hookstats.watching.settings import as_optimizers


def check(
    model: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    batch_dim: int | None = 0,
    causal: bool | None = None,
    quiet: bool = False,
) -> tuple[Finding, ...]:
    """Check a model, its loss and its optimizer on one batch, and print what was found.

    To be run once, before the training. It runs the model about a dozen times forwards and five
    times backwards, and leaves it as it was, to the bit: parameters, gradients, buffers, modes and
    other attributes of its modules, and the random number generators. The batch is copied.

    Args:
        model: the model; not sharded yet, and with all its parameters.
        batch: what the model is called with: a tensor, a tuple of positional arguments, or a
            mapping of keyword arguments. Its last entry is the target where the loss takes one.
        loss: a function of (output, target), such as F.cross_entropy or nn.MSELoss(), or of the
            output alone. By default the loss that the output has by itself, if it has one.
        optimizer: what trains the model, one or several; whether it has all parameters is checked.
        batch_dim: the dimension that samples have in inputs and outputs; None for a model that
            mixes samples on purpose, as graph networks and contrastive models do.
        causal: whether the model may see no later tokens. By default that is asked where the
            targets of a cross-entropy are the next tokens.
        quiet: whether nothing is printed.

    Samples, tokens and inputs are checked in eval mode, where BatchNorm does not mix samples and
    nothing is dropped; gradients and the loss in the mode that the model is in.

    Returns:
        The findings, the worst first. Each has a `message`, `where` it is, and an `advice`.
    Raises:
        ValueError: an argument is wrong, the model is sharded, or some parameters are lazy.
        Exception: what the model or the loss raises on the batch.
    """
    _check_arguments(model, batch_dim)
    optimizers = as_optimizers(optimizer)
    model = unwrapped(model)
    given = Given.of(model, batch, loss, batch_dim)
    lines = examined(model, given, optimizers, causal=causal)
    if not quiet:
        print(as_text(model, lines))
    return findings_of(lines)


def examined(
    model: nn.Module,
    given: Given,
    optimizers: Sequence[Optimizer],
    *,
    causal: bool | None = None,
    backward: training.Backward | None = None,
) -> list[Line]:
    """The results of all checks.

    backward: that of a loss that was there before; by default the loss is computed.
    """
    with untouched(model) as snapshot, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of a fused kernel that eval mode would take
        snapshot.reset()
        made = training.trained(model, given, optimizers, backward)
        facts = made.backward.facts
        lines = [
            training.initial_loss(made),
            training.loss_graph(made),
            training.gradients(made, settings.members(optimizers)),
            training.gain(made),
        ]
        target = None if facts.cross_entropy is None else facts.cross_entropy[1]
        is_next = dependence.is_next_token(given, target) if causal is None else causal
        is_own = dependence.is_own_token(given, target)
        outputs = dependence.of_outputs(
            model, given, snapshot, causal=is_next, attends=facts.attends
        )
        lines = [*outputs, *lines]
        if is_own and Line(dependence.FUTURE, dependence.SEES_NONE) in outputs:
            lines.append(_UNSHIFTED)
        lines.append(settings.of_optimizers(model, optimizers, made.gradients))
        lines.append(settings.of_dtypes(model, given))
        snapshot.reset()
        return [*lines, of_recording(model, given, made.gradients)]


_UNSHIFTED = Line(
    "targets",
    "the tokens themselves",
    (
        Finding(
            *("targets", "error", ""),
            "the target of each token is the token itself, which it sees",
            "shift the targets by one: logits of tokens[:, :-1] against tokens[:, 1:]",
        ),
    ),
)


def _check_arguments(model: object, batch_dim: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {model!r}: expected a torch.nn.Module")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"model: {name!r} is lazy; expected all parameters: call the model once before"
            )
        if not is_plain(parameter) or parameter.is_meta:
            raise ValueError(
                f"model: {name!r} is a {type(parameter.data).__name__} on {parameter.device}; "
                "expected a model that is not sharded yet, with values"
            )
    if batch_dim is not None and batch_dim not in (0, 1):
        raise ValueError(f"batch_dim = {batch_dim!r}: expected 0, 1, or None")


def findings_of(lines: Sequence[Line]) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    found = [one for line in lines for one in line.findings]
    return tuple(sorted(found, key=lambda one: -one.level))


def as_text(model: nn.Module, lines: Sequence[Line]) -> str:
    """The results as a table, and below it the findings with what helps."""
    numbers = sum(p.numel() for p in model.parameters())
    rows = [(line.check, line.status, line.text) for line in lines]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    told = [
        f"{one.severity}: {one.message}; what helps: {one.advice}" for one in findings_of(lines)
    ]
    text = [
        f"hookstats check: {type(model).__name__}, {numbers:,} parameters",
        *(f"{name:<{widths[0]}}  {status:<{widths[1]}}  {text}" for name, status, text in rows),
        *([""] if told else []),
        *told,
    ]
    return "\n".join(printable(line) for line in text)
