"""backends: what a type of device is treated like."""

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
from hookstats.buffers.graph_states import of_backward
from hookstats.kernels import ops
from hookstats.kernels.backends import BACKENDS, CPU, CUDA, home
from hookstats.stats.state import State, identity_moments, identity_tallies


def test_states_are_where_the_kernels_or_float64_are() -> None:
    assert home(torch.device("cpu")) == torch.device("cpu")
    assert home(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert home(torch.device("mps", 0)) == torch.device("cpu")
    assert home(torch.device("xpu", 0)) == torch.device("xpu", 0)


@pytest.mark.parametrize(
    ("cuda", "hip", "usable"), [("13.0", None, True), (None, "7.0", True), (None, None, False)]
)
def test_rocm_is_a_torch_with_devices_of_type_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, usable: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    reason = CUDA.why_unusable()
    assert (reason is None) == usable
    assert usable or "without CUDA or ROCm" in str(reason)


def test_kernels_that_are_loaded_have_an_entry() -> None:
    from hookstats.kernels import native

    if native.hooks is None:
        pytest.skip(f"no C++ hooks: {native.why_not}")
    loaded = {name for name, why in ops.why_missing.items() if why is None}
    assert CPU.type in loaded <= BACKENDS.keys()
    entries = ops.entries(native.hooks.PARAMS_SIZE)
    assert entries.keys() == loaded
    assert all(entries.values())
    with pytest.raises(RuntimeError, match="params_size is 1; expected"):
        torch.ops.hookstats.cpu_entry(1)


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


def test_no_forward_saves_what_is_on_another_device() -> None:
    """CUDA graphs of a forward give no tensor of the CPU to its backward."""
    there = torch.device("meta")  # as no other one is on every machine
    moments, tallies = identity_moments(3, there), identity_tallies(3, there)
    bins = hs.LogBins().descriptor(there)
    state = State(moments, tallies, torch.zeros(9, device=there), bins, None, None)
    of_gradients = of_backward(state)
    assert of_gradients.bins is not None
    assert of_gradients.bins is not bins
    assert torch.equal(of_gradients.bins, bins)
    assert of_backward(state).bins is of_gradients.bins  # of all sites the same
    here = state._replace(moments=moments.new_zeros(3, 5, device="cpu"))
    assert of_backward(here) is here
