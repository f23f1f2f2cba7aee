"""Copies of a watched model carry nothing of hookstats."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from hookstats.hooks.attach import MODULE_KINDS
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


def test_a_pickle_of_a_watched_model_loads_without_hookstats(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with watch(model, kinds=MODULE_KINDS):
        torch.save(model, tmp_path / "model")
        torch.save(copy.deepcopy(model), tmp_path / "copy")
    code = (
        "import sys, torch; sys.modules['hookstats'] = None\n"
        "for name in sys.argv[1:]:\n"
        "    model = torch.load(name, weights_only=False)\n"
        "    assert model(torch.ones(2, 3)).shape == (2, 4)"
    )
    for name in ("model", "copy"):
        assert b"hookstats" not in (tmp_path / name).read_bytes()  # not compressed
    command = [sys.executable, "-c", code, str(tmp_path / "model"), str(tmp_path / "copy")]
    subprocess.run(command, check=True, timeout=100)
