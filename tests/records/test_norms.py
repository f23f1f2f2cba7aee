"""GradientNorm: the rows of gradients are those of the sites of each record."""

from __future__ import annotations

import pytest
import torch

from hookstats.records.norms import GradientNorm, gradient_norm
from tests.support.samples import record_of


def test_other_sites_have_other_rows() -> None:
    x, norm_of = torch.arange(1.0, 7.0).reshape(3, 2), GradientNorm()
    gradient, output = {("a", "param_grad"): (x, 1)}, {("a", "output"): (10 * x, 1)}
    for tensors in (gradient, output | gradient, output | gradient, output, gradient):
        record = record_of(tensors)
        expected = None if tensors is output else pytest.approx(float(x.norm()))
        assert norm_of(record) == expected
        assert gradient_norm(record) == expected
