"""The operators that compiled graphs call: checked by torch, and the states that they fill."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from support.compiled import MARKS, dropout_network, train
from torch import Tensor

from hookstats.kernels.once_ops import count_once_, update_once_
from hookstats.kernels.ops import update_
from hookstats.stats import state
from hookstats.stats.bins import LogBins

pytestmark = MARKS

OPERATORS = [update_, update_once_, count_once_]


def arguments(operator: Any, x: Tensor) -> list[Any]:
    if operator is count_once_:
        return [torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)]
    bins = LogBins(0)
    return [
        x,
        1,
        state.identity_moments(3),
        state.identity_tallies(3),
        torch.zeros(bins.slots, dtype=torch.int64),
        bins.descriptor("cpu"),
        torch.zeros(3, bins.slots, dtype=torch.int64),
        bins.descriptor("cpu"),
    ]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_operators(operator: Any) -> None:
    """opcheck, and what it misses: whether the state joins the graph of what is accumulated."""
    leaf = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(operator, tuple(arguments(operator, leaf)))
    for function in (operator, torch.compile(operator, fullgraph=True, backend="aot_eager")):
        given = arguments(operator, leaf * 2)
        function(*given)
        for tensor in given[2:]:
            if isinstance(tensor, Tensor):
                assert tensor.grad_fn is None
                assert not tensor.requires_grad


@torch.library.custom_op("hookstats_tests::double_", mutates_args=("out",))
def double_(x: Tensor, out: Tensor) -> None:
    """An operator of nobody's."""
    out.copy_(x.detach() * 2)


@double_.register_fake
def _(x: Tensor, out: Tensor) -> None:
    """Nothing is returned."""


def test_opcheck_warns_of_no_more_than_of_another_operator() -> None:
    """From torch 2.14 on it asks its own copies of inputs that require gradients for .grad."""
    leaf = torch.randn(4, 3, requires_grad=True)

    def warned(operator: Any, *given: Any) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.library.opcheck(operator, given)
        return {str(warning.message) for warning in caught}

    of_torch = warned(double_, leaf, torch.empty(4, 3))
    for operator in OPERATORS:
        assert warned(operator, *arguments(operator, leaf)) <= of_torch


@pytest.mark.check
def test_the_states_that_graphs_fill_join_no_graph() -> None:
    training = train(dropout_network(), "aot_eager")
    assert training.watch is not None
    (buffer,) = training.watch._buffers.devices.values()
    states = [tensor for graph in buffer.graphs._states.values() for tensor in graph.state]
    assert len(states) > 20
    for tensor in states:
        assert tensor is None or (tensor.grad_fn is None and not tensor.requires_grad)


def test_once_operators_skip_backwards() -> None:
    leaf = torch.randn(4, 3, requires_grad=True)
    given = arguments(update_once_, leaf.detach())
    calls, recomputed = arguments(count_once_, leaf)
    y = leaf * 2

    def again(gradient: Tensor) -> None:
        update_once_(*given)
        count_once_(calls, recomputed)

    y.register_hook(again)
    y.sum().backward()
    assert (given[3].sum(), calls, recomputed) == (0, 0, 1)
    again(y)
    assert (given[3][:, state.COUNT].tolist(), calls, recomputed) == ([4, 4, 4], 1, 1)
