"""What training does that hooks get wrong: checkpoints, which run a forward again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checkpoints import CHECKPOINTS, non_reentrant, plain, reentrant
from support.expected import assert_adds_up, assert_stats
from torch import Tensor, nn

import hookstats as hs

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("inner", [plain, *CHECKPOINTS])
@pytest.mark.parametrize("outer", CHECKPOINTS)
def test_checkpoints_count_a_forward_once(
    outer: Callable[..., Any], inner: Callable[..., Any]
) -> None:
    first, second = (nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = outer(lambda x: inner(self.second, self.first(x)), x)
            return y

    model = Nested()
    x = torch.randn(2, 3, requires_grad=True)
    middle = first(x)
    y = second(middle)
    (gradient,) = torch.autograd.grad(y.square().sum(), middle, retain_graph=True)
    # Without a graph at first, its gradients are those of a recomputation.
    through = {"first.1": outer is not reentrant, "second.1": reentrant not in (outer, inner)}
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        for _ in range(2):
            model(x).square().sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        for name, values, gradients in (("first.1", middle, gradient), ("second.1", y, 2 * y)):
            assert_stats(w.latest[name, "output"], [values] * 2, -1)
            row = coverage[name, "output"]
            assert row.skipped in ({}, {"recomputation": row.forwards - 2})
            if through[name]:
                assert_stats(w.latest[name, "grad_output"], [gradients] * 2, -1)
            else:
                assert coverage[name, "grad_output"].observed == 0
        assert coverage["first.1", "output"].forwards > 2


def test_an_early_stop_of_a_recomputation_is_no_call() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        x = torch.randn(2, 3, requires_grad=True)
        y: Any = non_reentrant(model, x)
        y.sum().backward()
        w.step()
        assert_adds_up(w)
        coverage = w.coverage()
        # What the last layer saves is known before it ends.
        assert coverage["0", "output"].skipped == {"recomputation": 1}
        assert coverage["2", "output"].skipped == {}
        assert all(coverage[name, "grad_output"].observed == 1 for name in "012")
