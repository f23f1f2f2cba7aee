"""LossGraphs: looks at the autograd graphs of logged losses, from operator to operator."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.optim import Optimizer

from hookstats._torch import is_flattened, is_plain, shape_of_node
from hookstats.hooks.steps import parameters_of
from hookstats.rules.facts import LEAF, OPAQUE, Graph, Leaf, Node
from hookstats.rules.history import is_loss
from hookstats.stats.messages import error_text

_LOOKS = 8
"""How often the graph of a loss is looked at, at most."""

_NODES = 4000
"""How many nodes are looked at, in less than 20 ms; those next to the loss first."""

_NAME = re.compile(r"(?:.*::)?(\w+?)(?:Backward)?\d*\Z")
_SOFTMAX = ("Softmax", "LogSoftmax", "SafeSoftmax")


class LossGraphs:
    """The graphs of the logged losses of a watch.

    Each is looked at when its loss is logged first, in the next step that has the loss, and again
    when other operators made it. No tensor is kept, and none is read.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        submit: Callable[[int, Graph], object],
    ) -> None:
        """models: not kept alive. optimizers: those of the watch. submit: takes a graph, with the
        step of its loss."""
        self.unseen: dict[str, str] = {}
        """Why the graph of a loss is not known, or not all of it, by the name of the loss."""
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = optimizers
        self._submit = submit
        self._looks: dict[str, int] = {}
        self._seen: dict[str, tuple[Any, int]] = {}  # by loss: its outline, and the step
        self._versions: dict[int, int] = {}  # of parameters that the watch does not know, by id

    def look(self, values: Mapping[Any, Any], step: int) -> None:
        """Look at what is logged in a step; raises nothing."""
        for name, value in values.items():
            if isinstance(value, Tensor) and value.requires_grad and is_loss(str(name)):
                try:
                    self._look(str(name), value, step)
                except Exception as error:  # of a tensor subclass, or another torch
                    self.unseen[str(name)] = error_text(error)
                    self._looks[str(name)] = _LOOKS

    def _look(self, name: str, loss: Tensor, step: int) -> None:
        looks = self._looks.get(name, 0)
        if looks >= _LOOKS:
            return
        outline = _outline(loss)
        before, at = self._seen.get(name, (None, -1))
        is_again = before == outline
        if at == step or (is_again and looks > 1):
            return  # as in most steps
        self._looks[name] = looks = looks + 1 if is_again else 1 + max(looks, 0)
        self._seen[name] = outline, step
        nodes, is_complete = self._walk(loss)
        if any(node.name == OPAQUE for node in nodes):
            self.unseen[name] = "its graph has compiled code, a checkpoint or a custom function"
        else:
            self.unseen.pop(name, None)
        self._submit(step, Graph(name, nodes, is_complete, is_again))

    def _walk(self, loss: Tensor) -> tuple[tuple[Node, ...], bool]:
        """The nodes of a graph, and whether no leaf can be missing."""
        watched, trained, is_complete = self._known()
        if loss.grad_fn is None:
            leaf = self._leaf(loss, watched, trained)
            return (Node(LEAF, tuple(loss.shape), leaf=leaf),), True
        waiting: list[Any] = [loss.grad_fn]
        places = {loss.grad_fn: 0}
        found: list[Node] = []
        while len(found) < len(waiting):
            if len(found) == _NODES:
                return _cut(found), False
            node = waiting[len(found)]
            inputs: list[int | None] = []
            for below, _ in node.next_functions:
                if below is not None and below not in places:
                    places[below] = len(waiting)
                    waiting.append(below)
                inputs.append(None if below is None else places[below])
            read = self._read(node, tuple(inputs), watched, trained)
            is_complete = is_complete and read.name != OPAQUE
            found.append(read)
        return tuple(found), is_complete

    def _read(
        self, node: Any, inputs: tuple[int | None, ...], watched: set[int], trained: set[int]
    ) -> Node:
        if isinstance(node, BackwardCFunction):
            return Node(OPAQUE, (), inputs)
        match = _NAME.match(node.name())
        name = match.group(1) if match else OPAQUE
        shape = shape_of_node(node)
        if name == LEAF:
            return Node(name, shape, leaf=self._leaf(node.variable, watched, trained))
        if name in _SOFTMAX:
            return Node(name, shape, inputs, dim=_dim(node._saved_dim, len(shape)))
        if name == "Expand":
            return Node(name, shape, inputs, expanded=tuple(node._saved_self_sym_sizes))
        return Node(name, shape, inputs)

    def _leaf(self, tensor: Tensor, watched: set[int], trained: set[int]) -> Leaf:
        known = id(tensor) in watched, id(tensor) in trained
        is_parameter = isinstance(tensor, nn.Parameter)
        is_unchanged = False
        if is_parameter and not any(known):
            is_unchanged = self._versions.get(id(tensor)) == tensor._version
            self._versions[id(tensor)] = tensor._version
        return Leaf(*known, is_parameter, is_unchanged)

    def _known(self) -> tuple[set[int], set[int], bool]:
        """The parameters of the models and of the optimizers, by id, and whether a leaf can be told
        by that: those of FSDP are others while the model computes."""
        models = [model for model in (known() for known in self._models) if model is not None]
        parameters = [p for model in models for p in model.parameters()]
        trained = {id(p) for optimizer in self._optimizers for p in parameters_of(optimizer)}
        are_own = all(is_plain(p) and not is_flattened(p) for p in parameters)
        return {id(p) for p in parameters}, trained, are_own and bool(parameters)


def _cut(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The first nodes of a graph, without their ways to others."""
    end = len(nodes)
    return tuple(
        node._replace(inputs=tuple(None if i is None or i >= end else i for i in node.inputs))
        for node in nodes
    )


def _outline(loss: Tensor) -> tuple[str, ...]:
    """The operators next to a loss."""
    names: list[str] = []
    node: Any = loss.grad_fn
    while node is not None and len(names) < 4:
        names.append(node.name())
        node = next((below for below, _ in node.next_functions if below is not None), None)
    return tuple(names)


def _dim(dim: int, dims: int) -> int:
    """A dimension, counted from 0; autograd has negative ones as large numbers."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim + dims if dim < 0 else dim
