"""One forward and backward in train mode: the loss, the gradients, and the gain by depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats.hooks.leaves import leaves
from hookstats.preflight.finding import Finding, Line, listed, skipped
from hookstats.preflight.given import Given
from hookstats.records.alerts import Severity
from hookstats.records.keys import label
from hookstats.rules.facts import Graph
from hookstats.rules.history import History
from hookstats.rules.loss_graph import LossGraph
from hookstats.watching.loss_graphs import LossGraphs

LOSS, GRADIENTS, GAIN = "initial loss", "gradients", "gain by depth"

REENTRANT = "reentrant checkpoints, which autograd.grad cannot run"

_NODES = 100_000
"""How many nodes of a graph are visited."""
_FAR = 1e5
"""A ratio of gradients, or of outputs, between two layers that is too large for training."""
_FEW = 4
"""Of how many layers a model is deep."""


@dataclass
class Layer:
    """A module with a matrix of weights: the rms of its output, and the norm of the gradient."""

    name: str
    output: float = 0.0
    gradient: float = 0.0


@dataclass
class Facts:
    """What the graph of a loss, or of an output, says."""

    attends: bool = False
    """Whether it has attention: a softmax, or a fused operator."""
    cross_entropy: tuple[Tensor, Tensor] | None = None
    """The logarithms of probabilities, [N, classes], and the targets [N] of a cross-entropy."""
    squares: tuple[Tensor, Tensor] | None = None
    """The outputs and the targets of a mean squared error."""
    binary: float | None = None
    """A binary cross-entropy of logits, as the mean over its values."""


@dataclass
class Backward:
    """What the graph of a loss says, and the gradients that it gives."""

    loss: float | None = None
    """None where there is no loss, and a random projection of the outputs has its place."""
    facts: Facts = field(default_factory=Facts)
    gradients: dict[int, Tensor | None] = field(default_factory=dict)
    """By the id of the parameter."""
    error: str = ""
    """Why there are no gradients."""
    graphs: list[Graph] = field(default_factory=list)
    """The graph of the loss, as rules see it, once for each look at it."""

    @classmethod
    def of(
        cls,
        start: Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer] = (),
        again: Callable[[], Tensor | None] | None = None,
    ) -> Backward:
        """Run the backward of a loss, which frees the graph; the parameters' `grad` stays.

        again: makes the loss once more, which shows what in its graph is made anew; None where
            `start` is no loss.
        """
        made = cls(None if again is None else float(start.detach()))
        wanted = [p for model in models for p in model.parameters() if p.requires_grad]
        if not start.requires_grad:
            made.error = "the output" if again is None else "the loss"
            return made
        made.facts = _facts(start)
        if again is not None:
            looks = LossGraphs(models, optimizers, lambda step, graph: made.graphs.append(graph))
            looks.look({"loss": start}, 0)
            looks.look({"loss": again()}, 1)
        if not wanted:
            return made
        try:
            found = torch.autograd.grad(start, wanted, allow_unused=True)
        except RuntimeError as error:
            if "heckpoint" not in str(error):
                raise
            made.error = REENTRANT
            return made
        made.gradients = dict(zip(map(id, wanted), found, strict=True))
        return made


@dataclass
class Pass:
    """What one forward and backward of a model gave."""

    named: dict[str, nn.Parameter]
    """The parameters that require gradients."""
    backward: Backward
    layers: list[Layer]

    @property
    def gradients(self) -> dict[str, Tensor | None]:
        return {name: self.backward.gradients.get(id(p)) for name, p in self.named.items()}


def trained(
    model: nn.Module,
    given: Given,
    optimizers: Sequence[Optimizer] = (),
    backward: Backward | None = None,
) -> Pass:
    """Run the model on the batch in the mode that it is in, and back.

    backward: that of a loss that was there before; by default the loss is computed.

    Raises:
        ValueError: the loss is no scalar.
    """
    layers: dict[str, Layer] = {}
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if any(p.dim() > 1 for p in module.parameters(recurse=False)):
                hook = _watching(layers, name)
                stack.callback(module.register_forward_hook(hook).remove)
        output = given.call(model)
    loss = loss_of(given, output) if backward is None else None
    start = projection(output) if loss is None else loss
    own = Backward(error="the output")
    if start is not None:
        again = None if loss is None else lambda: loss_of(given, given.call(model))
        own = Backward.of(start, [model], optimizers, again)
    return Pass(named, backward or own, list(layers.values()))


def loss_of(given: Given, output: Any) -> Tensor | None:
    """The loss of an output, if there is a loss.

    Raises:
        ValueError: it is no scalar.
    """
    loss: Any = given.loss(output)
    if loss is None:
        return None
    if not (isinstance(loss, Tensor) and loss.numel() == 1):
        shown = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss returned {shown}: expected one number, such as the mean of a batch")
    return loss.reshape(())


def projection(output: Any) -> Tensor | None:
    """The outputs, randomly projected to one number: sums may be constant, as of a softmax."""
    found = [one for _, one in leaves(output) if one.is_floating_point() and one.requires_grad]
    parts = [(one * torch.randn_like(one)).float().mean() for one in found if one.numel()]
    return torch.stack(parts).sum() if parts else None


def _watching(layers: dict[str, Layer], name: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        tensor = next((one for _, one in leaves(output) if one.is_floating_point()), None)
        if tensor is None:
            return
        layer = layers.setdefault(name, Layer(name))
        layer.output = _rms(tensor.detach())

        def note(gradient: Tensor) -> None:
            layer.gradient = float(gradient.detach().double().norm())

        if tensor.requires_grad:
            tensor.register_hook(note)  # type: ignore[no-untyped-call]

    return hook


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _facts(start: Tensor) -> Facts:
    facts = Facts()
    for node in _graph(start):
        name: str = node.name()
        if name.startswith("NllLoss") and facts.cross_entropy is None:
            found, target = node._saved_self.detach(), node._saved_target
            facts.cross_entropy = found.movedim(1, -1).flatten(0, -2), target.flatten()
        elif name.startswith("MseLoss") and facts.squares is None:
            facts.squares = node._saved_self.detach(), node._saved_target.detach()
        elif name.startswith("BinaryCrossEntropyWithLogits"):
            logits, target = node._saved_self.detach(), node._saved_target.detach()
            loss = nn.functional.binary_cross_entropy_with_logits
            facts.binary = float(loss(logits.float(), target.float()))
        elif "Attention" in name or ("Softmax" in name and not name.startswith("Log")):
            facts.attends = True
    return facts


def _graph(loss: Tensor) -> Iterator[Any]:
    """The nodes of a graph, those near the loss first."""
    seen: set[Any] = set()
    level: list[Any] = [loss.grad_fn]
    while level and len(seen) < _NODES:
        following = []
        for node in level:
            if node is not None and node not in seen:
                seen.add(node)
                yield node
                following += [after for after, _ in node.next_functions]
        level = following


def initial_loss(made: Pass) -> Line:
    value, facts = made.backward.loss, made.backward.facts
    if value is None:
        return skipped(LOSS, "no loss is given, and the output has none")
    if not isfinite(value):
        finding = Finding(
            *(LOSS, "error", "", f"the loss is {value} before the first step"),
            "look at the batch, the targets, and what makes the loss: a logarithm or a division",
        )
        return Line(LOSS, f"{value}", (finding,))
    if facts.cross_entropy is not None:
        return _of_classes(*facts.cross_entropy)
    if facts.squares is not None:
        return _of_numbers(value, *facts.squares)
    if facts.binary is not None:
        return _against(facts.binary, 2, "a coin")
    return Line(LOSS, f"{value:.4g}")


def _of_classes(logs: Tensor, target: Tensor) -> Line:
    classes = logs.shape[1]
    counts = (target >= 0) & (target < classes)
    if not counts.any():
        finding = Finding(
            *(LOSS, "error", "", "the loss leaves out all targets of the batch"),
            "look at ignore_index, and at what the targets of padding are",
        )
        return Line(LOSS, "all targets are left out", (finding,))
    value = -float(logs[counts].double().gather(1, target[counts, None]).mean())
    return _against(value, classes, f"one of {classes} classes")


def _against(value: float, classes: int, guess: str) -> Line:
    expected = log(classes)
    text = f"{value:.4g}; a guess at {guess} has {expected:.4g}"
    if value <= 1.5 * expected + 0.5:
        return Line(LOSS, text)
    finding = Finding(
        *(LOSS, "warning", "", f"the initial loss is {text}: the model is sure, and wrong"),
        "make the first outputs small: a smaller gain of the last layer, embeddings of std 0.02 "
        "where they are the head's weights, inputs that are standardised",
    )
    return Line(LOSS, text, (finding,))


def _of_numbers(value: float, output: Tensor, target: Tensor) -> Line:
    mine, theirs = _rms(output), _rms(target)
    text = f"{value:.4g}; outputs have an rms of {mine:.3g}, targets {theirs:.3g}"
    advice = ""
    if theirs > 100 and mine < theirs / 10:
        advice = "standardise the targets: subtract their mean, divide by their deviation"
    elif theirs and mine > 100 * max(theirs, 0.1):
        advice = "standardise the inputs, or give the last layer a smaller gain"
    if not advice:
        return Line(LOSS, text)
    message = f"outputs and targets are of different sizes: {text.partition('; ')[2]}"
    return Line(LOSS, text, (Finding(LOSS, "warning", "", message, advice),))


def loss_graph(made: Pass) -> Line:
    """What the graph of the loss shows, as the rule of this name says it."""
    rule, graphs = LossGraph(), made.backward.graphs
    if not graphs:
        return skipped(rule.name, "no loss with a graph")
    text = f"{len(graphs[0].nodes)} operators"
    found = [alert for graph in graphs for alert in rule.check_fact(0, graph, History())]
    if not found:
        return Line(rule.name, text)
    alert = max(found, key=lambda one: one.level)
    message = f"the {alert.message.split(': ', 2)[2]}"
    finding = Finding(rule.name, alert.severity, "", message, alert.advice or rule.advice)
    return Line(rule.name, text, (finding,))


def gradients(made: Pass, members: set[int]) -> Line:
    """Which parameters get no gradient, or one that is not finite.

    members: those of the optimizers, by id; empty where none is given. A parameter without a
    gradient that no optimizer has, or that is a copy of one with a gradient, is an average, such as
    that of a teacher.
    """
    if not made.named:
        return skipped(GRADIENTS, "no parameter requires a gradient")
    error = made.backward.error
    if error == REENTRANT:
        return skipped(GRADIENTS, error)
    if error:
        finding = Finding(
            *(GRADIENTS, "error", "", f"{error} reaches no parameter: it has no graph"),
            "look for detach(), item(), no_grad, argmax, NumPy, or a new tensor made from the loss",
        )
        return Line(GRADIENTS, "none", (finding,))
    found = made.gradients
    without = [name for name, gradient in found.items() if gradient is None]
    bad = [name for name, one in found.items() if one is not None and not one.isfinite().all()]
    total = len(found)
    text = f"{total - len(without)} of {total} parameters have one"
    findings = []
    if bad:
        findings.append(
            Finding(
                *(GRADIENTS, "error", bad[0], f"gradients of {listed(bad)} are not finite"),
                "look at what makes them: the square root of 0, a division, a logarithm, where()",
            )
        )
    if without:
        sizes = {name: parameter.numel() for name, parameter in made.named.items()}
        share = sum(sizes[name] for name in without) / max(1, sum(sizes.values()))
        meant = [name for name in without if _is_to_train(name, made, members)]
        severity: Severity = "note"
        if sum(sizes[name] for name in meant) > 0.1 * sum(sizes.values()):
            severity = "warning"
        findings.append(
            Finding(
                *(GRADIENTS, severity, without[0]),
                f"no gradient reaches {len(without)} of {total} parameters, {share:.0%} of all "
                f"values: {listed(without)}",
                "call these layers in forward, do not detach what they return, or freeze them by "
                "requires_grad_(False)",
            )
        )
    return Line(GRADIENTS, text, tuple(findings))


def _is_to_train(name: str, made: Pass, members: set[int]) -> bool:
    parameter = made.named[name]
    if members and id(parameter) not in members:
        return False
    return not any(
        made.gradients[other] is not None
        and one.shape == parameter.shape
        and one.dtype == parameter.dtype
        and torch.equal(one, parameter)
        for other, one in made.named.items()
    )


def gain(made: Pass) -> Line:
    """How outputs and gradients change from the first layer to the last."""
    layers = [one for one in made.layers if one.output and one.gradient]
    if len(layers) < _FEW:
        return skipped(GAIN, f"fewer than {_FEW} layers with gradients")
    first, last = layers[0], layers[-1]
    findings = []
    backward = first.gradient / last.gradient
    forward = last.output / first.output
    each = backward ** (1 / (len(layers) - 1))
    text = f"outputs x{forward:.2g}, gradients x{backward:.2g} over {len(layers)} layers"
    way = f"from {label(last.name)!r} to {label(first.name)!r}, by x{each:.2g} a layer"
    norms = "add norms or residual connections, or initialise by kaiming_normal_ (ReLU) or "
    if backward < 1 / _FAR:
        findings.append(
            Finding(
                *(GAIN, "warning", first.name),
                f"gradients vanish: x{backward:.2g} {way}",
                f"{norms}xavier_normal_; no sigmoid in deep networks",
            )
        )
    elif backward > _FAR:
        findings.append(
            Finding(
                *(GAIN, "warning", first.name),
                f"gradients explode: x{backward:.2g} {way}",
                f"{norms}xavier_normal_; scale residual branches by their number",
            )
        )
    if forward > _FAR:
        findings.append(
            Finding(
                *(GAIN, "warning", last.name),
                f"outputs explode: x{forward:.2g} from {label(first.name)!r} to "
                f"{label(last.name)!r}",
                f"{norms}xavier_normal_",
            )
        )
    return Line(GAIN, text, tuple(findings))
