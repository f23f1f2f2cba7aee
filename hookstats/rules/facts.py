"""Facts: what is seen of a training without reading a tensor: the graph of its loss, its loop."""

from __future__ import annotations

from typing import Literal, NamedTuple

LEAF = "AccumulateGrad"
"""The name of the node of a tensor that gets a gradient."""

OPAQUE = "Function"
"""The name of a node whose inside is not known: compiled code, a checkpoint, a custom function."""


class Leaf(NamedTuple):
    """A tensor that the loss depends on, and that gets a gradient."""

    is_watched: bool
    """Whether a watched model has it."""
    is_trained: bool
    """Whether an optimizer of the watch has it."""
    is_parameter: bool
    is_unchanged: bool
    """Whether it was there when the graph was looked at before, with the same values."""


class Node(NamedTuple):
    """An operator in the graph of a loss."""

    name: str
    """As autograd has it, without "Backward0": "Softmax", "Addmm"; `LEAF`; `OPAQUE`."""
    shape: tuple[int, ...]
    """Of what the operator gave."""
    inputs: tuple[int | None, ...] = ()
    """The nodes that gave its inputs, by their places in the graph; None: no gradient goes there,
    or the graph was not followed so far."""
    dim: int | None = None
    """Along which dimension a softmax is, counted from 0."""
    expanded: tuple[int, ...] | None = None
    """The shape that an Expand had before."""
    leaf: Leaf | None = None


class Graph(NamedTuple):
    """The autograd graph of a logged loss; `watching.loss_graphs` makes it."""

    name: str
    """The name by which the loss was logged."""
    nodes: tuple[Node, ...]
    """In order of their distance from the loss: at least one."""
    is_complete: bool = True
    """Whether all nodes are there, and no leaf can be missing."""
    is_again: bool = False
    """Whether the graph of the same loss was looked at before, in another step."""


What = Literal["kept", "none", "foreign", "again", "eval", "written", "rewritten"]
"""Gradients are not zeroed; there are none; there are none, and the optimizer has none of the
parameters, either; gradients are used twice; modules are in eval mode; parameters were written to
between two steps of their optimizer; so they were in several steps in a row."""


class LoopFact(NamedTuple):
    """Something in the training loop that may not be meant; `watching.loop` sees it."""

    what: What
    names: tuple[str, ...]
    """The first three parameters or modules of which it is so; "" where one has no name."""
    many: int
    """Of how many it is so."""


Fact = Graph | LoopFact
"""What a rule may be asked about, see `Rule.check_fact`."""
