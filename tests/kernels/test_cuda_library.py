"""The library of the CUDA kernels where there is no GPU: loaded, registered and traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from hookstats.kernels import native, once_ops, ops
from hookstats.stats.bins import LogBins

missing = ops.why_missing["cuda"]
pytestmark = pytest.mark.skipif(missing is not None, reason=f"no CUDA kernels: {missing}")

OPERATORS: list[Any] = [ops.update_, ops.update_many_, once_ops.update_once_, once_ops.count_once_]
"""Those that take CUDA tensors."""


@pytest.mark.parametrize("name", ["update_", "update_many_"])
def test_operators_have_cuda_kernels(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hookstats::{name}", "CUDA")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hookstats::{name}", "Meta")


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_schemas_say_what_is_changed(operator: Any) -> None:
    changed = {a.name for a in operator._schema.arguments if a.alias_info and a.alias_info.is_write}
    of_state = {"moments", "tallies", "counts", "channel_counts"}
    assert changed == ({"calls", "recomputed"} if operator is OPERATORS[-1] else of_state)
    assert not operator._schema.returns


def state(channels: int, slots: int) -> list[Tensor]:
    """The moments, tallies, counts and counts by channel of a fake CUDA tensor."""
    return [
        torch.empty(channels, 5, dtype=torch.float64, device="cuda"),
        torch.empty(channels, 5, dtype=torch.int64, device="cuda"),
        torch.empty(slots, dtype=torch.int64, device="cuda"),
        torch.empty(channels, slots, dtype=torch.int64, device="cuda"),
    ]


def arguments(operator: Any, *, binned: bool) -> Sequence[Any]:
    """Every argument, or those that are required, all of them fake CUDA tensors."""
    if operator is once_ops.count_once_:
        return [torch.empty((), dtype=torch.int64, device="cuda") for _ in range(1 + binned)]
    bins = torch.empty(LogBins().descriptor("cpu").shape, dtype=torch.float64, device="cuda")
    sampling = torch.empty(4, dtype=torch.int64, device="cuda")
    xs = [torch.empty(5, 3, device="cuda", dtype=dtype) for dtype in (torch.half, torch.bfloat16)]
    if operator is ops.update_many_:
        lists = [list(each) for each in zip(*(state(3, LogBins().slots) for _ in xs), strict=True)]
        moments, tallies, counts, channel_counts = lists
        if not binned:
            return xs, 1, moments, tallies, [], None, [], None
        scale = torch.empty((), device="cuda")
        return xs, 1, moments, tallies, counts, bins, channel_counts, bins, scale, sampling
    moments, tallies, counts, channel_counts = state(3, LogBins().slots)  # type: ignore[assignment]
    if not binned:
        return xs[0], 1, moments, tallies
    mask = torch.empty(5, dtype=torch.bool, device="cuda")
    return xs[0], 1, moments, tallies, counts, bins, channel_counts, bins, sampling, mask


@pytest.mark.parametrize("binned", [False, True])
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_fake_cuda_tensors_are_traced(operator: Any, binned: bool) -> None:
    """Without a fake kernel, the mode refuses the operator; with the real one, it needs a GPU."""
    with FakeTensorMode():
        given = arguments(operator, binned=binned)
        assert operator(*given) is None

        def call(*tensors: Any) -> None:
            operator(*tensors)

        graph = make_fx(call)(*given).graph
    called = [node for node in graph.nodes if node.op == "call_function"]
    assert [node.target for node in called] == [operator]


def test_the_hooks_find_the_kernels_of_their_build(recwarn: pytest.WarningsRecorder) -> None:
    if native.hooks is None:
        pytest.skip(f"no C++ hooks: {native.why_not}")
    size = native.hooks.PARAMS_SIZE
    assert set(ops.entries(size)) == {"cpu", "cuda"}
    entry: Callable[[int], int] = torch.ops.hookstats.cuda_entry
    with pytest.raises(RuntimeError):
        entry(size + 8)
