"""Which modules and parameters are chosen, and how they are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from hookstats.hooks.selection import Selection


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 2)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(2, 2, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(2)


BLOCK0 = ["blocks.0.fc1", "blocks.0.act", "blocks.0.fc2"]
BLOCK1 = ["blocks.1.fc1", "blocks.1.act", "blocks.1.fc2"]


def test_by_default_all_leaves_and_all_parameters() -> None:
    model = Model()
    selection = Selection(model)
    assert list(selection.modules) == [*BLOCK0, *BLOCK1, "norm"]
    assert list(selection.parameters) == [name for name, _ in model.named_parameters()]
    assert selection.modules["norm"] is model.norm
    assert selection.parameters["scale"] is model.scale


@pytest.mark.parametrize(
    ("include", "modules", "parameters"),
    [
        ("norm", ["norm"], ["norm.weight", "norm.bias"]),
        ("blocks.0", ["blocks.0"], []),
        ("blocks.0.*", BLOCK0, ["fc1.weight", "fc1.bias", "fc2.weight"]),
        ("blocks.[0].fc?", [BLOCK0[0], BLOCK0[2]], ["fc1.weight", "fc1.bias", "fc2.weight"]),
        ("scale", [], ["scale"]),
        ("", [""], ["scale"]),
        ("*.bias", [], ["blocks.0.fc1.bias", "blocks.1.fc1.bias", "norm.bias"]),
        (re.compile(r"1\.fc\d$"), [BLOCK1[0], BLOCK1[2]], ["fc1.weight", "fc1.bias", "fc2.weight"]),
        (nn.ReLU, [BLOCK0[1], BLOCK1[1]], []),
        (lambda name, module: isinstance(module, Block), ["blocks.0", "blocks.1"], []),
        (["norm", nn.ReLU], [BLOCK0[1], BLOCK1[1], "norm"], ["norm.weight", "norm.bias"]),
        ({"norm"}, ["norm"], ["norm.weight", "norm.bias"]),
        ("NORM", [], []),
        ([], [], []),
    ],
)
def test_include(include: Any, modules: list[str], parameters: list[str]) -> None:
    selection = Selection(Model(), include)
    assert list(selection.modules) == modules
    assert len(selection.parameters) == len(parameters)
    assert all(map(str.endswith, selection.parameters, parameters))


def test_exclude() -> None:
    selection = Selection(Model(), exclude=["blocks.1.*", nn.ReLU, "norm.bias"])
    assert list(selection.modules) == ["blocks.0.fc1", "blocks.0.fc2", "norm"]
    assert list(selection.parameters)[-1] == "norm.weight"
    assert not any("blocks.1" in name for name in selection.parameters)


def test_exclude_narrows_include() -> None:
    assert list(Selection(Model(), nn.Linear, "*.fc2").modules) == ["blocks.0.fc1", "blocks.1.fc1"]


@pytest.mark.parametrize("bad", [3, Model(), int, ["norm", 3], b"norm", None])
def test_bad_selectors(bad: Any) -> None:
    if bad is not None:
        with pytest.raises(ValueError, match=r"(?s)include = .*expected a glob"):
            Selection(Model(), include=bad)
    with pytest.raises(ValueError, match=r"(?s)exclude = .*expected a glob"):
        Selection(Model(), exclude=[bad])


def test_shared_modules_and_parameters_have_their_first_name() -> None:
    model = nn.Module()
    model.a = nn.Linear(2, 2)
    model.b = nn.Linear(2, 2)
    model.c = model.a
    model.b.weight = model.a.weight
    selection = Selection(model)
    assert list(selection.modules) == ["a", "b"]
    assert list(selection.parameters) == ["a.weight", "a.bias", "b.bias"]


def test_a_leaf_can_be_the_root() -> None:
    selection = Selection(nn.Linear(2, 2))
    assert list(selection.modules) == [""]
    assert list(selection.parameters) == ["weight", "bias"]


def test_containers_and_parametrizations_are_no_leaves() -> None:
    model = nn.Module()
    model.list = nn.ParameterList([nn.Parameter(torch.ones(1))])
    model.empty = nn.ModuleDict()
    model.fc = parametrizations.weight_norm(nn.Linear(2, 2))
    selection = Selection(model)
    assert list(selection.modules) == ["fc"]
    assert "fc.parametrizations.weight.original1" in selection.parameters


def test_prefixes_of_wrappers_are_stripped() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    plain = Selection(model)
    several: list[nn.Module] = [
        nn.DataParallel(model),
        AveragedModel(nn.DataParallel(model)),
        nn.ModuleDict({"_orig_mod": nn.ModuleDict({"_fsdp_wrapped_module": model})}),
        nn.Sequential(nn.ModuleDict({"_checkpoint_wrapped_module": model[0]}), model[1]),
    ]
    for wrapped in several:
        selection = Selection(wrapped)
        assert list(selection.modules) == list(plain.modules)
        assert list(selection.parameters) == list(plain.parameters)


def test_module_is_a_name_like_any_other_beside_others() -> None:
    model = nn.ModuleDict({"module": nn.ReLU(), "other": nn.ReLU()})
    assert list(Selection(model).modules) == ["module", "other"]


def test_wrappers_are_not_chosen() -> None:
    inner = nn.Linear(2, 2)
    assert Selection(nn.DataParallel(inner), nn.Module).modules == {"": inner}


def test_names_stay_distinct_where_stripping_makes_them_equal() -> None:
    holder = nn.ModuleDict({"fc": nn.Linear(2, 2), "_orig_mod": nn.ModuleDict({"fc": nn.ReLU()})})
    assert list(Selection(holder).modules) == ["fc", "_orig_mod.fc"]


class Gate(nn.Module):
    """Has a parameter of its own, and children."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.act = nn.Parameter(torch.ones(3)), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x * self.weight)  # type: ignore[no-any-return]


def test_blocks_with_parameters_of_their_own_are_chosen_but_for_the_model() -> None:
    model = Gate()
    model.add_module("inner", nn.Sequential(Gate(), nn.MultiheadAttention(4, 2)))
    assert list(Selection(model).modules) == ["act", "inner.0", "inner.0.act", "inner.1"]


def test_siblings_are_looked_at_once() -> None:
    """A hundred seconds went into the names of 20,000 layers in one list."""

    class Counting(nn.ModuleList):
        looks = 0

        def named_children(self) -> Iterator[tuple[str, nn.Module]]:
            type(self).looks += 1
            return super().named_children()

    found = Selection(Counting(nn.Identity() for _ in range(50)))
    assert len(found.modules) == 50
    assert Counting.looks < 10
