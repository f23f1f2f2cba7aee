"""The library of the CUDA kernels where there is no GPU: loaded, registered and traced."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hookstats.kernels import ops

missing = ops.why_missing["cuda"]
pytestmark = pytest.mark.skipif(missing is not None, reason=f"no CUDA kernels: {missing}")


@pytest.mark.parametrize("name", ["update_", "update_many_"])
def test_operators_have_cuda_kernels(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hookstats::{name}", "CUDA")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hookstats::{name}", "Meta")


def test_fake_cuda_tensors_are_traced() -> None:
    """Without a fake kernel, the mode refuses the operator; with the real one, it needs a GPU."""
    with FakeTensorMode():
        x = torch.empty(5, 3, device="cuda")
        moments = torch.empty(3, 5, dtype=torch.float64, device="cuda")
        tallies = torch.empty(3, 5, dtype=torch.int64, device="cuda")
        ops.update_(x, 1, moments, tallies)
        assert (moments.device.type, moments.shape) == ("cuda", (3, 5))
