"""What hooks keep alive and take along: tensors, graphs, models, copies, and what is saved."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hookstats.watching.handle import Watch
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def model_and_watch() -> tuple[nn.Sequential, Watch]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    return model, watch(model, kinds=KINDS)


def test_hooks_do_not_pile_up() -> None:
    model, w = model_and_watch()
    x = torch.randn(2, 5, 3, requires_grad=True)
    counts = []
    for _ in range(4):
        model(x).sum().backward()
        w.step()
        counts.append({key: int(w.latest[key].count[0]) for key in w.latest})
    assert counts == [counts[0]] * 4
    assert not x._backward_hooks
    w.close()


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 3)])
def test_values_are_let_go_before_the_backward(shape: tuple[int, ...]) -> None:
    model, w = model_and_watch()
    y = model[0](torch.randn(shape))
    values = StorageWeakRef(y.untyped_storage())
    loss = (y * 2).sum()
    del y
    assert values.expired()
    loss.backward()
    w.step()
    assert w.coverage()["0", "grad_output"].observed == 1
    w.close()


@pytest.mark.check
def test_live_tensors_do_not_grow() -> None:
    model, w = model_and_watch()

    def count() -> int:
        w._recorder.drain()
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    counts = []
    for i in range(12):
        loss = model(torch.randn(2, 5, 3)).sum()
        if i % 2:
            loss.backward()
        w.step()
        del loss
        counts.append(count())
    assert counts[4:8] == counts[8:]  # every second step has no gradients to record
    w.close()


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


def test_an_ema_of_a_watched_model() -> None:
    model, w = model_and_watch()
    ema = torch.optim.swa_utils.AveragedModel(model)
    model(torch.randn(2, 3)).sum().backward()
    ema.update_parameters(model)
    ema(torch.randn(2, 3))
    w.step()
    assert w.coverage()["0", "output"].forwards == 1
    w.close()


def test_a_tensor_with_hooks_is_saved_without_a_warning() -> None:
    model, w = model_and_watch()
    y = model(torch.randn(2, 5, 3))
    torch.save(y, io.BytesIO())
    w.close()
