"""The private parts of torch that `hookstats/_torch.py` names are there in the torch that runs.

Most of them may be missing without an error: then hookstats does less, and only this test says so.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from support.paths import ROOT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookstats import _torch

TREE = ast.parse((ROOT / "hookstats" / "_torch.py").read_text())


STAGE = "torch.distributed.pipelining.stage"


def node() -> object:
    """A node of autograd."""
    return torch.ones(2, requires_grad=True).exp().grad_fn


def frames() -> object:
    """Where dynamo decides what becomes of a frame."""
    return importlib.import_module("torch._C._dynamo.eval_frame")


# Private attributes and marks, each with an object that has it, or the module whose code sets it.
PLACES: dict[str, str | Callable[[], object]] = {
    "_FrameAction": frames,
    "_FrameExecStrategy": frames,
    "_ToTorchTensorBackward": "torch.distributed.tensor._api",  # without "Backward"
    "_checkpoint_wrapped_module": "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "_compiled_call_impl": lambda: nn.Linear(1, 1),
    "_current_level": lambda: torch.autograd.forward_ad,
    "_dynamo_marked_constant": "torch._dynamo.decorators",
    "_foreach_add_": lambda: torch,
    "_foreach_copy_": lambda: torch,
    "_foreach_norm": lambda: torch,
    "_foreach_zero_": lambda: torch,
    "_forward_metadata_inference": STAGE,
    "_fsdp_flattened": "torch.distributed.fsdp._common_utils",
    "_fsdp_param_group": "torch.distributed.fsdp._fully_shard._fsdp_state",
    "_fsdp_param_groups": "torch.distributed.fsdp._fully_shard._fsdp_state",
    "_fsdp_wrapped_module": "torch.distributed.fsdp._common_utils",
    "_get_fsdp_state": "torch.distributed.fsdp._fully_shard._fully_shard",
    "_init_optim_state": "torch.distributed.checkpoint.state_dict",
    "_input_metadata": node,
    "_inter_node_pg": "torch.distributed.fsdp._init_utils",
    "_local_tensor": "torch.distributed.tensor._api",
    "_optimizer_step_pre_hooks": lambda: torch.optim.SGD([torch.ones(1)]),
    "_orig_mod": "torch._dynamo.eval_frame",
    "_shape_inference": STAGE,
    "_shard_numel_padded": "torch.distributed.fsdp._flat_param",
    "_spec": "torch.distributed.tensor._api",
    "_torchdynamo_disable": "torch._dynamo.decorators",
    "_torchdynamo_disable_msg": "torch._dynamo.decorators",
    "dtensor_spec": "torch.distributed.tensor._api",
    "saved_tensor_with_no_vc_check": "torch._functorch.partitioners",
    "set_code_exec_strategy": frames,
}
# Pairs of which versions of torch have the one or the other.
EITHER = (
    ("_forward_metadata_inference", "_shape_inference"),
    ("_fsdp_param_group", "_fsdp_param_groups"),
)
# What torch 2.10 is known to lack: what follows is said where hookstats uses it.
NEWER = {"_get_proxies", "saved_tensor_with_no_vc_check"}
IS_2_10 = torch.__version__.startswith("2.10.")


def names() -> Iterator[str]:
    """The private attributes and marks that the module names, without those it imports."""
    for part in ast.walk(TREE):
        match part:
            case ast.Attribute(value=value, attr=name) if ast.unparse(value) != "sys":
                pass
            case ast.Constant(value=str(name)):
                pass
            case _:
                continue
        if re.fullmatch(r"_[A-Za-z]\w+", name) or name in PLACES:
            yield name


def imports() -> Iterator[tuple[str, str]]:
    """The modules and names that the module imports from torch, at once or when it needs them."""
    for part in ast.walk(TREE):
        match part:
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("torch"):
                yield from ((module, alias.name) for alias in aliases)
            case ast.Constant(value=str(module)) if re.fullmatch(r"torch(\.\w+)+", module):
                yield module, "__name__"


def is_there(name: str) -> bool:
    """Whether the running torch has a private attribute or mark where `PLACES` says."""
    place = PLACES[name]
    if isinstance(place, str):
        source = inspect.getsource(importlib.import_module(place))
        return re.search(rf"\b{name.removesuffix('Backward')}\b", source) is not None
    return hasattr(place(), name)


def test_every_private_name_has_a_place() -> None:
    assert set(names()) == set(PLACES)


@pytest.mark.parametrize(("module", "name"), sorted(set(imports())))
def test_what_is_imported_is_there(module: str, name: str) -> None:
    expected = not (IS_2_10 and name in NEWER)
    assert hasattr(importlib.import_module(module), name) == expected


@pytest.mark.parametrize("name", sorted(PLACES.keys() - {name for pair in EITHER for name in pair}))
def test_attributes_and_marks_are_there(name: str) -> None:
    assert is_there(name) == (not (IS_2_10 and name in NEWER))


@pytest.mark.parametrize("pair", EITHER, ids=str)
def test_one_of_a_pair_is_there(pair: tuple[str, str]) -> None:
    assert any(map(is_there, pair))


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
