"""gradient_norm: the rows of gradients are those of the sites of each record."""

from __future__ import annotations

import math

import pytest
import torch

from hookstats.records.norms import gradient_norm
from tests.support.samples import record_of


def test_other_sites_have_other_rows() -> None:
    x = torch.arange(1.0, 7.0).reshape(3, 2)
    gradient, output = {("a", "param_grad"): (x, 1)}, {("a", "output"): (10 * x, 1)}
    for tensors in (gradient, output | gradient, output | gradient, output, gradient):
        record = record_of(tensors)
        expected = None if tensors is output else pytest.approx(float(x.norm()))
        assert gradient_norm(record) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1.0], math.inf),
        ([math.nan, 1.0], math.nan),
        ([math.nan, math.inf], math.nan),
        ([math.inf, math.inf], math.inf),
        ([3.0, 4.0], 5.0),
        ([1e200, 1e200], math.inf),
    ],
)
def test_gradients_that_are_not_finite(values: list[float], expected: float) -> None:
    """Also where the squares are not."""
    x = torch.tensor(values, dtype=torch.float64)
    record = record_of({("a", "param_grad"): (x, None), ("b", "output"): (x, None)})
    assert gradient_norm(record) == pytest.approx(expected, nan_ok=True)
