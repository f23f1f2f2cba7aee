"""backends: what a type of device is treated like."""

from __future__ import annotations

import pytest
import torch

from hookstats.kernels import ops
from hookstats.kernels.backends import BACKENDS, CPU, CUDA, backend_of, home


def test_states_are_where_the_kernels_or_float64_are() -> None:
    assert home(torch.device("cpu")) == torch.device("cpu")
    assert home(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert home(torch.device("mps", 0)) == torch.device("cpu")
    assert home(torch.device("xpu", 0)) == torch.device("xpu", 0)


def test_devices_without_a_row_have_the_fallback() -> None:
    other = backend_of(torch.device("xpu", 0))
    assert other.library is None
    assert not other.occupancy
    assert not other.is_capturing()


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
