"""Masks that only look like masks, or whose memory is freed: said, never read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hookstats.records.reasons import MASK_UNFIT
from hookstats.watching.watch import watch

MASK = torch.arange(5) < torch.tensor([[5], [3], [1]])


class Model(nn.Module):
    """Takes a mask, and does nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 6)

    def forward(self, x: Tensor, padding: object = None) -> Tensor:
        out: Tensor = self.wide(x)
        return out


def freed() -> Tensor:
    """Torch would read it, and end the process."""
    mask = MASK.clone()
    mask.untyped_storage().resize_(0)
    return mask


@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (MASK.numpy, "type ndarray"),
        (MASK.tolist, "type list"),
        (freed, "no storage"),
    ],
    ids=["array", "list", "freed"],
)
def test_what_only_looks_like_a_mask_is_said(mask: Callable[[], object], says: str) -> None:
    model = Model()
    with watch(model, mask="padding", rules=()) as w:
        with pytest.warns(RuntimeWarning, match=rf"mask = 'padding': the argument has {says}, exp"):
            model(torch.randn(3, 5, 4), mask())
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == MASK.numel()
        assert w.coverage()["wide", "output"].unmasked == {MASK_UNFIT: 1}
