"""Batches of parameters in C++: each device's tensors go to the kernels of its own type."""

from __future__ import annotations

import ctypes
import weakref

import pytest
import torch
from torch import nn

from hookstats.kernels import native
from hookstats.stats.state import State, identity_moments, identity_tallies

UPDATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)


class Kernels(ctypes.Structure):
    """`Kernels` of csrc/ops/kernels.h."""

    _fields_ = (("update", UPDATE), ("is_capturing", ctypes.c_void_p))


@pytest.mark.skipif(native.hooks is None, reason=f"no C++ hooks: {native.why_not}")
def test_devices_of_two_types_with_the_same_index_have_batches_of_their_own() -> None:
    """Meta tensors have the index of the CPU, -1, as the first GPU of any maker has 0."""
    assert native.hooks is not None
    calls: list[tuple[str, int]] = []
    table = {
        device: Kernels(UPDATE(lambda _, count, __, device=device: calls.append((device, count))))
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
        counter = torch.zeros(1, dtype=torch.int64)
        site.set_plan(parameter.detach(), 0, (state, state), (counter, counter), None)
        parameters.add_watched(parameter, weakref.ref(model), key, site, None)
        sites.append(site)
    with buffers:
        assert parameters.observe([list(model.values())], None)
    assert sorted(calls) == [("cpu", 1), ("meta", 1)]
    assert [site.observed for site in sites] == [1, 1]
