"""A rule about the autograd graph of the logged loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hookstats.records.alerts import SCALAR, Alert, Severity
from hookstats.rules.facts import LEAF, Fact, Graph, Leaf, Node
from hookstats.rules.history import History
from hookstats.rules.rule import Rule

_MOVES = frozenset(
    (
        *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias", "Clone", "ToCopy"),
        *("Slice", "Select", "Index", "T", "Transpose", "Permute", "Unbind", "Split"),
    )
)
"""What gives the values that it takes, elsewhere."""
_TURNS = frozenset(("T", "Transpose", "Permute"))
_REDUCES = frozenset(("Mean", "Sum", "Neg", "Div", "Mul", "Pow", "Abs", "Add", "Sub", "Sqrt"))
_ELEMENTWISE = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss"))
_SOFTMAX = frozenset(("Softmax", "SafeSoftmax", "LogSoftmax"))
_BOUNDED = {"Softmax": "a softmax", "Sigmoid": "a sigmoid", "Relu": "a ReLU", "Tanh": "a tanh"}
"""What has no place in front of a loss that takes logits."""
_PRODUCTS = frozenset(("Addmm", "Mm", "Linear", "Convolution"))
_LINEAR = (
    _PRODUCTS
    | _MOVES
    | frozenset(
        (
            *(LEAF, "Add", "Sub", "Neg", "Mean", "Sum", "Cat", "Stack", "Expand", "Embedding"),
            *("AvgPool2D", "NativeDropout"),
        )
    )
)
_CRITERIA = frozenset(("NllLoss", "NllLoss2D", "LogSoftmax", "BinaryCrossEntropyWithLogits"))
_LOGITS = "give the loss the last layer's output, without an activation"


@dataclass(frozen=True, kw_only=True)
class LossGraph(Rule):
    """The graph of the logged loss shows that the loss is not that of the model's outputs.

    A tensor that ``log(loss=loss)`` gets is walked through, from operator to operator, in two steps
    and whenever other operators made it; no tensor is read. There is an alert if a softmax, a
    sigmoid, a ReLU or a tanh comes in front of a loss of logits, if the softmax of a cross-entropy,
    or of attention, goes along another dimension than that of the classes, or than the last one, if
    it goes along a dimension of one; if the likelihood gets no logarithms; if outputs [N, 1] and
    targets [N] make [N, N]; if parameters that no watched model and no optimizer has are in it, as
    those of layers in a Python list; if all operators are linear, though a hidden layer is as wide
    as one of its neighbours; and, as an error, if no parameter is in it. A regression whose outputs
    end in a ReLU, a tanh or a sigmoid gives a note. Nothing is known of what is compiled, or in a
    checkpoint. The alert's value is the number of nodes.
    """

    name: ClassVar[str] = "loss graph"
    advice: ClassVar[str] = "check how the loss is computed from the model's output"

    def check_fact(self, step: int, fact: Fact, history: History) -> Iterator[Alert]:
        if not isinstance(fact, Graph):
            return
        for says, helps, severity in findings(fact):
            key = (fact.name, SCALAR)
            value = float(len(fact.nodes))
            yield self.about(key, step, None, says, value, severity=severity, advice=helps)
            return


_Finding = tuple[str, str, Severity]
"""What is wrong, what helps, and how bad it is."""


def findings(graph: Graph) -> Iterator[_Finding]:
    """What a graph shows, the worst first."""
    for find in _FINDERS:
        yield from find(graph)


def _reaches_nothing(graph: Graph) -> Iterator[_Finding]:
    if graph.nodes[0].leaf is not None:
        says = "is a new tensor, which no operator made: no gradient reaches the model"
        yield says, "call backward on the loss of the model's outputs, not on a copy of it", "error"
    elif graph.is_complete and not any(
        leaf.is_parameter or leaf.is_trained for leaf in _leaves(graph)
    ):
        says = "depends on no parameter: something between the model and the loss cuts the graph"
        yield says, "remove what detaches: detach, item, numpy, torch.tensor, no_grad", "error"


def _activation(graph: Graph) -> Iterator[_Finding]:
    """What comes in front of a loss of logits."""
    nodes = graph.nodes
    for node in nodes:
        if node.name == "LogSoftmax" and _size(node) > 1:
            takes, wants = "a softmax", "a cross-entropy takes logits"
        elif node.name == "BinaryCrossEntropyWithLogits":
            takes, wants = "a sigmoid", "this binary cross-entropy takes logits"
        else:
            continue
        below = _below(nodes, node)
        if below is None:
            continue
        name = below.name
        if name == "Exp" and (inner := _below(nodes, below)) and inner.name == "LogSoftmax":
            name = "Softmax"
        if name in _BOUNDED:
            yield f"takes {takes} of the output of {_BOUNDED[name]}: {wants}", _LOGITS, "warning"
        elif below.name == "LogSoftmax" and below.shape == node.shape and below.dim != node.dim:
            says = f"takes {takes} of the output of a log_softmax along dimension {below.dim}"
            yield f"{says}, which is not that of the classes", _LOGITS, "warning"


def _likelihood(graph: Graph) -> Iterator[_Finding]:
    """What nll_loss takes, which is logarithms of probabilities, along the classes."""
    nodes = graph.nodes
    for node in nodes:
        below = _below(nodes, node) if node.name in ("NllLoss", "NllLoss2D") else None
        if below is None:
            continue
        if below.name in ("Softmax", "Sigmoid", "Relu") or below.name in _PRODUCTS:
            of = _BOUNDED.get(below.name, "a linear layer")
            helps = "take log_softmax, or cross_entropy of the logits"
            yield f"is nll_loss of the output of {of}: it takes log-probabilities", helps, "warning"
        elif below.name == "LogSoftmax":
            given = _input(nodes, node)
            classes = 0 if len(given.shape) == 1 else 1
            if len(given.shape) <= classes:
                continue
            if below.dim != classes if given is below else _size(below) != given.shape[classes]:
                says = f"takes the softmax of {list(below.shape)} along dimension {below.dim}"
                helps = "take it along the dimension of the classes"
                yield f"{says}: that is not the dimension of the classes", helps, "warning"


def _broadcast(graph: Graph) -> Iterator[_Finding]:
    """Outputs [N, 1] and targets [N], or the other way round, whose difference is [N, N]."""
    nodes = graph.nodes
    for node in nodes:
        if node.name in _ELEMENTWISE:
            below = _input(nodes, node) if node.inputs and node.inputs[0] is not None else None
            if below is not None and below.name == "Expand" and below.expanded is not None:
                yield from _squared(below.expanded, below.shape)
    for node in _near(nodes):
        given = [i for i in node.inputs if i is not None]
        if node.name in ("Sub", "Mul") and len(given) == 1:
            below = nodes[given[0]]
            if below.name == "Expand" and below.expanded is not None:
                yield from _squared(below.expanded, below.shape)
            elif below.name not in ("Unsqueeze", "Expand", LEAF):
                yield from _squared(below.shape, node.shape)


def _squared(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[_Finding]:
    n = after[-1] if after else 0
    if after == (n, n) and n > 1 and before in ((n, 1), (n,)):
        other = (n,) if before == (n, 1) else (n, 1)
        says = f"compares {list(before)} with {list(other)}, which makes {list(after)}: each output"
        yield f"{says} with each target", "give both one shape: squeeze or unsqueeze", "warning"


def _along(graph: Graph) -> Iterator[_Finding]:
    """Softmaxes along a dimension of one, and those of attention along another than the last."""
    nodes = graph.nodes
    for node in nodes:
        if node.name in _SOFTMAX and graph.is_again and _size(node) == 1:
            says = f"depends on the softmax of {list(node.shape)} along dimension {node.dim}"
            helps = "take it along the dimension whose values compete"
            yield f"{says}, which has size 1: it is always 1", helps, "warning"
    for node in nodes:
        scores = _scores(nodes, node)
        if scores is not None and scores.dim != len(scores.shape) - 1:
            says = (
                f"depends on attention whose softmax of {list(scores.shape)} goes along dimension "
                f"{scores.dim}: the weights of a query do not add up to 1"
            )
            yield says, "take the softmax along the last dimension", "warning"


def _scores(nodes: Sequence[Node], node: Node) -> Node | None:
    """The softmax of the scores of attention, queries along the rows, if a product is that of
    attention."""
    if node.name != "Bmm" or not node.inputs:
        return None
    kept = _MOVES - _TURNS | {"Expand", "Mul", "NativeDropout"}
    weights = _down(nodes, node, kept)
    if weights is None or weights.name != "Softmax" or len(weights.shape) < 3:
        return None
    scores = _down(nodes, weights, kept | {"Div", "MaskedFill", "Add", "Where", "Sub"})
    is_square = weights.shape[-1] > 1 and weights.dim is not None
    return weights if scores is not None and scores.name == "Bmm" and is_square else None


def _unknown(graph: Graph) -> Iterator[_Finding]:
    """Parameters that nothing trains, since nothing knows them."""
    leaves = [leaf for leaf in _leaves(graph) if leaf.is_parameter]
    known = any(leaf.is_watched or leaf.is_trained for leaf in leaves)
    unknown = [leaf for leaf in leaves if not (leaf.is_watched or leaf.is_trained)]
    if known and unknown and all(leaf.is_unchanged for leaf in unknown):
        says = f"depends on {len(unknown)} parameters that no watched model and no optimizer has"
        helps = (
            "put layers into nn.ModuleList instead of a list; freeze what is to stay as it is by "
            "requires_grad_(False)"
        )
        yield f"{says}: nothing trains them", helps, "warning"


def _linear(graph: Graph) -> Iterator[_Finding]:
    """A model of linear layers alone, one of which is no bottleneck."""
    nodes = graph.nodes
    if not graph.is_complete:
        return
    criteria = _CRITERIA | _ELEMENTWISE
    near = {id(node) for node in _near(nodes)}
    is_squared = any(node.name in ("Pow", "Abs") for node in _near(nodes))
    if not (is_squared or any(node.name in criteria for node in nodes)):
        return
    body = [node for node in nodes if node.name not in criteria]
    if not all(_is_linear(node) or (id(node) in near and node.name in _REDUCES) for node in body):
        return
    for node in body:
        if node.name not in _PRODUCTS:
            continue
        below = _down(nodes, node, _MOVES | {"Mul", "NativeDropout"}, at=_INPUT[node.name])
        if below is None or below.name not in _PRODUCTS or below.name != node.name:
            continue
        first, second = _weight(nodes, below), _weight(nodes, node)
        if first is None or second is None:
            continue
        hidden, inputs = first
        outputs, width = second
        if hidden == width and hidden >= min(inputs, outputs):
            says = "depends on linear layers with no activation between them"
            helps = "put an activation, such as ReLU, between the layers"
            yield f"{says}: together they are one linear layer", helps, "warning"
            return


_INPUT = {"Addmm": 1, "Mm": 0, "Linear": 0, "Convolution": 0}
"""Which input of a product is that of the layer."""


def _weight(nodes: Sequence[Node], node: Node) -> tuple[int, int] | None:
    """How many outputs and inputs the weight of a layer has; None where its weight is no leaf."""
    place = {"Addmm": 2, "Mm": 1, "Linear": 1, "Convolution": 1}[node.name]
    found = nodes[i] if place < len(node.inputs) and (i := node.inputs[place]) is not None else None
    is_turned = found is not None and found.name in _TURNS
    if found is not None and is_turned:
        found = _below(nodes, found, _TURNS)
    if found is None or found.leaf is None or len(found.shape) < 2:
        return None
    outputs, inputs = found.shape[:2]
    return (outputs, inputs) if is_turned or node.name not in ("Addmm", "Mm") else (inputs, outputs)


def _is_linear(node: Node) -> bool:
    """Whether an operator is linear in what it has a gradient for."""
    given = sum(place is not None for place in node.inputs)
    return node.name in _LINEAR or (node.name in ("Mul", "Div") and given == 1)


def _bounded_regression(graph: Graph) -> Iterator[_Finding]:
    nodes = graph.nodes
    for node in nodes:
        below = _below(nodes, node) if node.name in _ELEMENTWISE else None
        if below is not None and below.name in ("Relu", "Tanh", "Sigmoid"):
            least = {"Relu": "above 0", "Tanh": "between -1 and 1", "Sigmoid": "between 0 and 1"}
            says = f"compares targets with the output of {_BOUNDED[below.name]}"
            yield f"{says}, which lies {least[below.name]}", "see that targets lie there", "note"


def code_shapes(graph: Graph) -> Iterator[tuple[int, ...]]:
    """The shapes, without their first dimension, of what layers give of which a loss takes the
    exponential: logarithms of variances, as those of a variational autoencoder."""
    for node in graph.nodes:
        below = _down(graph.nodes, node, _MOVES | {"Mul", "Div", "Clamp"})
        if node.name == "Exp" and below is not None and below.name in _PRODUCTS:
            yield below.shape[1:]


_FINDERS: tuple[Callable[[Graph], Iterator[_Finding]], ...] = (
    _reaches_nothing,
    _activation,
    _likelihood,
    _broadcast,
    _along,
    _unknown,
    _linear,
    _bounded_regression,
)


def _leaves(graph: Graph) -> Iterator[Leaf]:
    return (node.leaf for node in graph.nodes if node.leaf is not None)


def _size(node: Node) -> int:
    """How many values a softmax is over; 0 if unknown."""
    known = node.dim is not None and node.dim < len(node.shape)
    return node.shape[node.dim] if known and node.dim is not None else 0


def _input(nodes: Sequence[Node], node: Node) -> Node:
    """The node of the first input, which is there."""
    place = node.inputs[0]
    assert place is not None
    return nodes[place]


def _down(
    nodes: Sequence[Node], node: Node, through: frozenset[str] | set[str], at: int = 0
) -> Node | None:
    """The first node below an input that is none of `through`, by the only or first input of each;
    None where the graph ends before."""
    while True:
        if at >= len(node.inputs) or (place := node.inputs[at]) is None:
            return None
        node, at = nodes[place], 0
        if node.name not in through:
            return node
        at = next((i for i, found in enumerate(node.inputs) if found is not None), 0)


def _below(nodes: Sequence[Node], node: Node, through: frozenset[str] = _MOVES) -> Node | None:
    return _down(nodes, node, through)


def _near(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes between the loss and the first that does more than to reduce many numbers to one:
    with these."""
    seen, waiting = {0}, [0]
    while waiting:
        node = nodes[waiting.pop()]
        yield node
        if node.name in _REDUCES or node.name in ("View", "Squeeze"):
            new = [i for i in node.inputs if i is not None and i not in seen]
            seen.update(new)
            waiting += new
