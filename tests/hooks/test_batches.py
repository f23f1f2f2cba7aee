"""What the C++ hooks ask of kernels: a batch for each device, one question and one call a time."""

from __future__ import annotations

import ctypes
import weakref

import pytest
import torch
from torch import nn

from hookstats.buffers import double_buffer
from hookstats.kernels import native
from hookstats.kernels.ops import entries
from hookstats.stats.state import State, identity_moments, identity_tallies
from hookstats.watching.watch import watch

UPDATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_bool)
IS_CAPTURING = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int32)


class Kernels(ctypes.Structure):
    """`Kernels` of csrc/ops/kernels.h."""

    _fields_ = (("update", UPDATE), ("is_capturing", IS_CAPTURING))


pytestmark = pytest.mark.skipif(native.hooks is None, reason=f"no C++ hooks: {native.why_not}")


def test_devices_of_two_types_with_the_same_index_have_batches_of_their_own() -> None:
    """Meta tensors have the index of the CPU, -1, as the first GPU of any maker has 0."""
    assert native.hooks is not None
    calls: list[tuple[str, int]] = []
    table = {
        device: Kernels(UPDATE(lambda _, count, *__, device=device: calls.append((device, count))))
        for device in ("cpu", "meta")
    }
    buffers = native.hooks.DoubleBuffer(
        {device: ctypes.addressof(table[device]) for device in table}
    )
    parameters = native.hooks.Parameters(buffers)
    model = nn.ParameterDict(
        {f"on_{device}": nn.Parameter(torch.empty(3, 0, device=device)) for device in table}
    )
    assert len({parameter.get_device() for parameter in model.values()}) == 1
    sites = []
    for key, parameter in model.items():
        site = native.hooks.Site(buffers, model)
        state = State(identity_moments(3), identity_tallies(3), None, None, None, None)
        calls_of = torch.zeros(1, 2, dtype=torch.int64)
        site.set_plan(parameter.detach(), 0, (state, state), (calls_of,) * 2, None, (0, 0, 0))
        parameters.add_watched(parameter, weakref.ref(model), key, site, None)
        sites.append(site)
    with buffers:
        assert parameters.observe([list(model.values())], None)
    assert sorted(calls) == [("cpu", 1), ("meta", 1)]
    assert [site.observed for site in sites] == [1, 1]


def test_an_observation_asks_once_for_captures_and_launches_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device with graphs, of which asking costs a call of the driver; the parameters of an
    optimizer are one observation."""
    calls: list[str] = []

    def counted(params_size: int) -> dict[str, int]:
        update = Kernels.from_address(entries(params_size)["cpu"]).update

        def launch(params: int, count: int, device: int, captured: bool) -> None:
            calls.append("captured" if captured else "launched")
            update(params, count, device, captured)

        def is_capturing(device: int) -> bool:
            calls.append("asked")
            return False

        table.append(Kernels(UPDATE(launch), IS_CAPTURING(is_capturing)))
        return {"cpu": ctypes.addressof(table[0])}

    table: list[Kernels] = []
    monkeypatch.setattr(double_buffer, "entries", counted)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    with watch(model, optimizer, kinds=("output", "grad_output", "param_grad"), every=1) as w:
        for _ in range(3):  # by then, all is as in the step before
            calls.clear()
            model(x).sum().backward()
            optimizer.step()
        assert calls == ["asked", "launched"] * 3
        assert w.latest["", "output"].count.sum() == 8
