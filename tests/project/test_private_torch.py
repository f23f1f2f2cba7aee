"""Private parts of torch that `hookstats/_torch.py` imports are there in the torch that runs."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from support.paths import ROOT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookstats import _torch

TREE = ast.parse((ROOT / "hookstats" / "_torch.py").read_text())
IS_2_10 = torch.__version__.startswith("2.10.")


def imports() -> Iterator[tuple[str, str]]:
    """The modules and names that the module imports from torch, at once or when it needs them."""
    for part in ast.walk(TREE):
        match part:
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("torch"):
                yield from ((module, alias.name) for alias in aliases)
            case ast.Constant(value=str(module)) if re.fullmatch(r"torch(\.\w+)+", module):
                yield module, "__name__"


@pytest.mark.parametrize(("module", "name"), sorted(set(imports())))
def test_what_is_imported_is_there(module: str, name: str) -> None:
    # What torch 2.10 is known to lack: what follows is said where hookstats uses it.
    expected = not (IS_2_10 and name == "_get_proxies")
    assert hasattr(importlib.import_module(module), name) == expected


def test_fsdp2_tells_over_which_mesh_batches_are_spread() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Linear(2, 2)
        assert _torch.batch_groups(model) == []
        fully_shard(model, mesh=mesh)
        assert _torch.batch_groups(model) == [("", mesh)]
    finally:
        dist.destroy_process_group()


def test_dynamo_says_what_it_traces_and_what_it_compiled() -> None:
    found: list[object] = []

    @torch.compiler.assume_constant_result
    def look() -> int:
        found.append(_torch.current_translation())
        return 1

    def double(given: torch.Tensor) -> torch.Tensor:
        return given * (look() + 1)

    assert _torch.current_translation() is None
    compiled = torch.compile(double, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    (translation,) = found
    assert isinstance(translation, tuple)
    assert "given" in translation[1]
    guards = dict(_torch.compiled_functions())[double.__code__]
    assert len(guards) == 1
    assert "given" in guards[0]
    _torch.forget_compiled(double.__code__)
    assert not dict(_torch.compiled_functions()).get(double.__code__)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(found) == 2


def test_dynamo_says_in_which_operators_it_traces() -> None:
    found: list[list[str]] = []

    @torch.compiler.assume_constant_result
    def look() -> int:
        found.append(list(_torch.traced_operators()))
        return 1

    def outer(given: torch.Tensor) -> torch.Tensor:
        def inner(given: torch.Tensor) -> torch.Tensor:
            return given * look()

        return torch.cond(given.sum() > 0, inner, torch.neg, (given * look(),))

    assert not list(_torch.traced_operators())
    torch.compile(outer, backend="eager", fullgraph=True)(torch.ones(2))
    assert found == [[], ["cond"]]
