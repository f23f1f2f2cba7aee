"""What hooks keep alive and take along: tensors, graphs, models, copies, and what is saved."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn

from hookstats.watching.handle import Watch
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def model_and_watch() -> tuple[nn.Sequential, Watch]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    return model, watch(model, kinds=KINDS)


def test_the_model_can_be_freed_while_it_is_watched() -> None:
    model, w = model_and_watch()
    model(torch.randn(2, 3)).sum().backward()
    w.step()
    alive = weakref.ref(model), weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    w.step()
    w.close()


@pytest.mark.parametrize("how", ["deepcopy", "save", "copy a layer"])
def test_copies_are_not_watched(how: str) -> None:
    model, w = model_and_watch()
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "save":
        file = io.BytesIO()
        torch.save(model, file)
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    else:
        other = nn.Sequential(*(copy.deepcopy(layer) for layer in model))
    hooks = [*other[0]._forward_hooks.values(), *other[0]._forward_pre_hooks.values()]
    assert hooks == []
    assert not other[0]._forward_pre_hooks_with_kwargs
    assert model[0]._forward_hooks
    x = torch.randn(2, 3)
    assert torch.equal(other(x), model(x.clone()))
    other(x).sum().backward()
    w.step()
    assert w.latest["0", "output"].count.tolist() == [2] * 4
    assert w.latest["0", "input"].count.tolist() == [2] * 3
    w.close()
    other(x).sum().backward()


def test_a_tensor_with_hooks_is_saved_without_a_warning() -> None:
    model, w = model_and_watch()
    y = model(torch.randn(2, 5, 3))
    torch.save(y, io.BytesIO())
    w.close()
