"""Edits beside other hooks, and their life: removed, copied, let go, compiled."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from support.modules import double, gradients_of
from torch import Tensor, nn

from hookstats.tensors.edit import edit
from hookstats.watching.watch import watch

pytestmark = [  # warnings of torch about itself, where it compiles
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]


@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_watches_before_between_and_after_edits(kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    watches = [watch(model, kinds=(kind,))]
    for factor in (2, 5):
        edit(model[0], lambda t, factor=factor: t * factor, kind)
        watches.append(watch(model, kinds=(kind,)))
    x = torch.ones(1, 2, requires_grad=True)
    for _ in range(3):  # the first tensor takes another way
        model(x * 1).sum().backward()
        for one in watches:
            one.step()
    before, between, after = (one.latest["0", kind].mean for one in watches)
    torch.testing.assert_close(between, 2 * before)
    torch.testing.assert_close(after, 10 * before)
    for one in watches:
        one.close()


def test_the_users_own_hooks_keep_their_places() -> None:
    layer = nn.Linear(2, 2)
    seen: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: seen.append(name)

    layer.register_forward_hook(note("own before"))
    edit(layer, note("edit"))
    layer.register_forward_hook(note("own after"))
    y = layer(torch.ones(1, 2))
    first = y.register_hook(note("gradient before"))
    edit(y, note("gradient edit"))
    removed = y.register_hook(note("removed"))
    y.register_hook(note("gradient after"))
    removed.remove()
    y.sum().backward(retain_graph=True)
    forward = ["own before", "edit", "own after"]
    assert seen == [*forward, "gradient before", "gradient edit", "gradient after"]
    first.remove()  # although the edit came after it
    del seen[:]
    y.sum().backward()
    assert seen == ["gradient edit", "gradient after"]


def test_a_removed_edit_leaves_the_gradients_of_earlier_forwards_alone() -> None:
    layer = nn.Linear(2, 2)
    handle = edit(layer, double, "grad_output")
    y = layer(torch.ones(1, 2))
    handle.remove()
    y.sum().backward()
    assert handle.calls == 0
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["output", "grad_output"])
def test_an_edit_that_removes_itself(kind: str) -> None:
    layer = nn.Linear(2, 2)
    handle = edit(layer, lambda t: handle.remove(), kind)
    others = edit(layer, double, kind)
    for _ in range(2):
        layer(torch.ones(1, 2)).sum().backward()
    assert (handle.calls, others.calls) == (1, 2)


def test_a_removed_edit_is_not_entered_again() -> None:
    handle = edit(nn.Linear(2, 2), double)
    with handle:
        pass
    with pytest.raises(ValueError, match="the edit is removed: expected one in force"), handle:
        pass


def test_copies_are_not_edited() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = layer(x)
    handles = [edit(layer, lambda t: t * 2, kind) for kind in ("output", "input", "grad_output")]
    handles.append(edit(layer.weight, lambda g: g * 2))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin(x).sum().backward()
        assert torch.equal(twin(x), plain)
        assert twin.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert [handle.calls for handle in handles] == [0, 0, 0, 0]


def test_a_tensor_with_an_edit_can_be_saved() -> None:
    w = torch.ones(2, requires_grad=True)
    edit(w, double)
    assert torch.equal(pickle.loads(pickle.dumps(w)), w)


def test_nothing_keeps_a_tensor_alive() -> None:
    layer = nn.Linear(2, 2)
    handles = [edit(layer, double, kind) for kind in ("output", "input", "grad_output")]
    x = torch.ones(1, 3, 2)
    y = layer(x)
    handles.append(edit(y, double))
    alive = [weakref.ref(y), weakref.ref(x)]
    y.sum().backward()
    del x, y
    assert [reference() for reference in alive] == [None, None]
    assert [handle.calls for handle in handles] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["output", "input", "grad_output"])
def test_compiled_code_ends_its_graph_at_an_edit(kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    handle = edit(model[1], lambda t: t.sin() * 2, kind)
    x = torch.randn(3, 2, requires_grad=True)
    (eager,) = gradients_of(model(x).square().sum(), x)
    compiled = torch.compile(model, backend="eager")
    (mine,) = gradients_of(compiled(x).square().sum(), x)
    torch.testing.assert_close(mine, eager)
    assert handle.calls == 2
    torch._dynamo.reset()
    whole = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"hookstats\.edit calls a function"):
        whole(x)
    with pytest.raises(ValueError, match="is compiled"):
        edit(whole, double)


def test_code_compiled_before_is_compiled_again() -> None:
    model = nn.Tanh()

    def called(x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result

    compiled = torch.compile(called, backend="eager")
    x = torch.randn(3, 2)
    expected = 2 * compiled(x)
    with pytest.warns(RuntimeWarning, match="compiled again"):
        edit(model, double)
    torch.testing.assert_close(compiled(x), expected)
