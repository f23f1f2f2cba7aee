"""capture beside torch.compile: what is refused, what runs in pieces, and what says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hookstats as hs

# Of dynamo's own, where its graphs break.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.mark.parametrize("how", ["wrapper", "in place", "child"])
def test_a_compiled_model_is_refused(how: str) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3))
    if how == "wrapper":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        model[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"model: .* is compiled"):
        hs.capture(model)


@pytest.mark.check
def test_a_model_that_is_compiled_while_it_is_captured_runs_in_pieces() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    x = torch.randn(2, 4, 3)
    with hs.capture(model) as c:
        model(x).square().sum().backward()
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            compiled(x).square().sum().backward()
        for name in ("0", "1", "2"):
            first, *others = c.calls(name)
            assert len(others) == 3
            for call in others:
                torch.testing.assert_close(
                    (call.output, call.grad_output), (first.output, first.grad_output)
                )
    compiled(x)  # after the capture
    assert len(c.calls("0")) == 4


def test_one_graph_of_a_model_that_is_captured_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    with (
        hs.capture(model),
        pytest.raises(RuntimeError, match="capture keeps the tensors of every call: close it"),
    ):
        whole(torch.ones(1, 3))
    assert whole(torch.ones(1, 3)).shape == (1, 3)
