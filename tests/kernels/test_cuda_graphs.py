"""What inductor's CUDA graphs ask of the states that compiled graphs change; shown on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from support.compiled import needs_gradients
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

import hookstats as hs


@needs_gradients
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whatever_a_graph_changes_stays_where_it_is() -> None:
    """CUDA graphs are given up where an input is changed that is not known to have one address."""
    changed: list[set[int]] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        context = TracingContext.try_get()
        assert context is not None
        facts = context.fw_metadata
        assert facts is not None
        changed.append({i for i, given in enumerate(facts.input_info) if given.mutates_data})
        assert changed[-1] <= set(facts.static_input_indices)
        return make_boxed_func(graph.forward)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        compiled = torch.compile(model, backend=aot_autograd(fw_compiler=compiler))
        compiled(torch.randn(3, 4)).sum().backward()
        w.step()
        assert len(w.latest) == 6
    # Of six sites: moments, tallies, a histogram and counters.
    assert len(changed) == 2  # forward, backward
    assert all(len(indices) > 6 for indices in changed)
