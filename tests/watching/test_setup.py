"""setup_of(): what a training run begins with, of whatever parameters there are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookstats.rules.setup import Weight
from hookstats.watching.settings import together
from hookstats.watching.setup import setup_of
from hookstats.watching.watch import select, watch

KINDS = ("output", "param_grad")


def weight(parameter: nn.Parameter) -> Weight:
    model = nn.ParameterDict({"w": parameter})
    (found,) = setup_of(select(together({"": model}), KINDS, "w", None, "watch"), []).weights
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_size_of_a_weight(dtype: torch.dtype) -> None:
    found = weight(nn.Parameter(torch.full((4, 3), 2.0, dtype=dtype)))
    assert (found.rms, found.constant, found.rows) == (2.0, True, None)
    rows = torch.full((6, 3), 2.0, dtype=dtype)
    rows[4] = 0.0
    found = weight(nn.Parameter(rows))
    assert found.rows is not None
    assert (found.rows.many, found.rows.first, found.constant) == (1, 4, False)


def test_a_weight_that_cannot_be_read_is_not_known() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        eight = nn.Parameter(torch.randn(4, 4).to(dtype), requires_grad=False)
        assert weight(eight).rms is None
        model = nn.Linear(4, 4)
        model.weight = eight
        watch(model).close()  # the training is not stopped by it
    assert weight(nn.Parameter(torch.empty(0, 3))).rms is None
    assert weight(nn.Parameter(torch.empty(2, 3, device="meta"))).rms is None
