"""What hooks keep alive and take along; copies of a watched model carry nothing of hookstats."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import fx, nn

from hookstats.hooks.attach import MODULE_KINDS
from hookstats.tensors.capture import capture
from hookstats.tensors.edit import edit
from hookstats.watching.handle import Watch
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def test_a_deep_copy_keeps_the_hooks_of_others_and_can_be_scripted() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    model[1].register_forward_hook(_of_the_user)
    with watch(model, kinds=MODULE_KINDS, include="*"):
        other = copy.deepcopy(model)
        assert [list(m._forward_hooks.values()) for m in other.modules()] == [
            [_of_the_user] if m is other[1] else [] for m in other.modules()
        ]
    other[1]._forward_hooks.clear()
    x = torch.randn(2, 3)
    assert torch.equal(torch.jit.script(other)(x), model(x))


def test_a_deep_copy_of_a_graph_module_has_no_hooks() -> None:
    model = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    with watch(model, kinds=MODULE_KINDS, include="*"):
        other = copy.deepcopy(model)
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in other.modules()]
    assert hooks == [({}, {})] * 3


def _of_the_user(module: nn.Module, args: object, output: object) -> None: ...


class Masked(nn.Sequential):
    """Has an argument for a mask, and keeps its watch."""

    watch: Watch | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x)  # type: ignore[no-any-return]


class OwnState(nn.Sequential):
    """Says itself what is pickled, as DistributedDataParallel does."""

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)


def _saved(model: nn.Module, **how: object) -> bytes:
    file = io.BytesIO()
    torch.save(model, file, **how)  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize("cls", [nn.Sequential, Masked, OwnState])
def test_a_saved_model_is_to_the_byte_what_it_is_unwatched(cls: type[nn.Sequential]) -> None:
    model = cls(nn.Linear(3, 4), nn.ReLU())
    model[1].register_forward_hook(_of_the_user, always_call=True)
    unwatched = _saved(model)
    mask = "mask" if cls is Masked else None
    with watch(model, kinds=MODULE_KINDS, mask=mask), capture(model), edit(model[0], lambda x: x):
        assert _saved(model) == unwatched
        assert _saved(copy.deepcopy(model)) == unwatched
        assert pickle.dumps(model, protocol=4)  # one that torch.save does not take
    assert _saved(model) == unwatched


def test_a_saved_model_loads_with_weights_only_and_its_hooks_keep_their_arguments() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with watch(model, kinds=MODULE_KINDS):
        saved = _saved(model)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
        loaded = torch.load(io.BytesIO(saved), weights_only=True)
    assert not any(m._forward_pre_hooks_with_kwargs for m in loaded.modules())
    assert loaded(torch.ones(2, 3)).shape == (2, 4)


def test_ordered_dicts_of_others_are_copied_and_pickled_as_they_are() -> None:
    some = OrderedDict({1: True, "b": [nn.ReLU]})
    some.note = "an attribute"  # type: ignore[attr-defined]
    found = pickle.loads(pickle.dumps(some))
    assert (found, vars(found)) == (some, vars(some))
    assert copy.deepcopy(some) == some
    assert copy.copy(some) == some


def test_a_model_may_keep_its_watch() -> None:
    model = Masked(nn.Linear(3, 4))
    unwatched = _saved(model)
    model.watch = watch(model)
    twin = copy.deepcopy(model)
    assert twin.watch is model.watch
    with torch.serialization.safe_globals([Masked, nn.Linear]):
        assert torch.load(io.BytesIO(_saved(model))).watch == {}
    model.watch.close()
    assert torch.load(io.BytesIO(_saved(model)), weights_only=False).watch == {}
    del model.watch
    assert _saved(model) == unwatched


@pytest.mark.parametrize("mode", [True, False])
def test_a_model_that_has_run_is_exported_with_a_dynamic_batch(mode: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).train(mode)
    with watch(model, kinds=MODULE_KINDS) as w:
        model(torch.ones(2, 3)).sum().backward()
        w.step()
        batch = {0: torch.export.Dim("batch")}
        program = torch.export.export(model, (torch.ones(2, 3),), dynamic_shapes={"input": batch})
    assert program.module()(torch.ones(5, 3)).shape == (5, 4)


class Convolution(nn.Module):
    """A layer that quantization swaps, and that fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning")
def test_hooks_that_quantization_hands_on_record_inputs_and_go_at_the_end() -> None:
    model, x = Convolution(), torch.randn(2, 3, 4, 4)
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    w = watch(model, kinds=("input", "output"), rules=())
    model(x)
    w.step()
    before = {(site.name, site.kind) for site in w.latest.sites}
    torch.ao.quantization.fuse_modules_qat(model, ["conv", "relu"], inplace=True)
    torch.ao.quantization.prepare_qat(model, inplace=True)
    model(x)
    w.step()
    after = {(site.name, site.kind) for site in w.latest.sites}
    assert before - after == {("relu", "input"), ("conv", "output")}  # which are fused
    w.close()
    assert not any(m._forward_pre_hooks for m in model.modules())
    kinds = {type(hook).__module__ for m in model.modules() for hook in m._forward_hooks.values()}
    assert not any("hookstats" in kind for kind in kinds)


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
