"""The private parts of torch that hookstats uses; no other module imports any.

Each part says what it is for, the versions of torch it was checked against, and what happens in a
torch without it. "All" versions are 2.11.0, 2.13.0, 2.14.1 and 2.15.0: tests/hooks passed on them.
"Required" means that `import hookstats.hooks` fails there. Modules that are slow to import, as
dynamo is (a second), are imported by the functions that need them, when they do.

The private attributes of tensors and modules that hookstats reads in place are `Tensor._base`,
`Tensor._version`, `Tensor._backward_hooks` and `Module._parameters` (all; required).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import (
    DisableTorchFunction,
    DispatchKey,
    _current_graph_task_id,
    _disabled_torch_dispatch_impl,
    _DisableTorchDispatch,
    _dispatch_tls_is_dispatch_key_included,
    _get_dispatch_mode,
    _get_tracing_state,
    _has_storage,
    _TorchDispatchModeKey,
)
from torch._C import _is_torch_function_enabled as is_torch_function_enabled
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn.modules.module import _global_forward_hooks_with_kwargs

__all__ = [
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "FakeTensor",
    "is_functorch_wrapped_tensor",
    "is_torch_function_enabled",
]

# DisableTorchFunction keeps subclasses' __torch_function__ out; is_functorch_wrapped_tensor tells
# of torch.func transforms, FakeTensor of no data (all; required).

DisableTorchDispatch = _DisableTorchDispatch
"""Context: neither modes nor subclasses see the operators that are called (all; required)."""

current_graph_task_id = _current_graph_task_id
"""The running backward's number on this thread, -1 outside of a backward (all; required)."""

COMPILERS = "torch._inductor."
"""Where the processes come from that compile kernels (2.13); without it, one that a script starts
is taken for a child that trains."""

has_storage = _has_storage
"""Whether a tensor has a storage; wrappers have none (all; required)."""

jit_tracing_state = _get_tracing_state
"""The state of torch.jit.trace on this thread; None outside of a trace (all; required)."""

top_saved_tensors_hooks = _top_saved_tensors_default_hooks
"""The innermost hooks on saved tensors, as a checkpoint sets them, or None (all; required)."""

foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_norm = torch._foreach_norm
foreach_zero_ = torch._foreach_zero_
"""Many tensors by one kernel; the lists must not be empty (all; required)."""


def is_plain(tensor: Tensor) -> bool:
    """Whether no subclass dispatches for `tensor`: its memory holds its values (all; required)."""
    return type(tensor).__torch_dispatch__ is _disabled_torch_dispatch_impl


def is_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open (all; required)."""
    return forward_ad._current_level != -1


def is_transforming() -> bool:
    """Whether torch.func transforms what this thread calls (2.13; required). Unlike a question for
    the level, this makes nothing that each node of autograd would have to copy from then on."""
    return _dispatch_tls_is_dispatch_key_included(DispatchKey.FuncTorchDynamicLayerFrontMode)


def is_faking() -> bool:
    """Whether a FakeTensorMode is on: operators compute shapes, no values (all; required)."""
    return _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None


def forget_global_hook(identity: int) -> None:
    """Drop what torch keeps of a removed global hook with keyword arguments (all; required)."""
    _global_forward_hooks_with_kwargs.pop(identity, None)


# Distributed tensors.

_DTENSOR = ("torch.distributed.tensor", "DTensor")
_PENDING = ("torch.distributed._functional_collectives", "AsyncCollectiveTensor")


def is_dtensor(tensor: Tensor) -> bool:
    """Whether `tensor` is spread over ranks (2.13; without the class: False)."""
    return _is_loaded(tensor, *_DTENSOR)


def is_pending(tensor: Tensor) -> bool:
    """Whether `tensor` is the result of a collective under way (2.13; without the class: False)."""
    return _is_loaded(tensor, *_PENDING)


def local_shard(tensor: Tensor) -> Tensor:
    """The part of a DTensor on this rank, with which nothing communicates (2.13; required for
    DTensors)."""
    part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return part


def is_freed(tensor: Tensor) -> bool:
    """Whether a tensor, or the part of a DTensor on this rank, has elements and no memory: it was
    offloaded, sharding freed it, or it is of a transform. To read it may crash."""
    if type(tensor) is not Tensor and is_dtensor(tensor):
        tensor = local_shard(tensor)
    has_memory = has_storage(tensor) and tensor.untyped_storage().nbytes()
    return bool(tensor.numel()) and not has_memory


class Placed(NamedTuple):
    """How a DTensor, or the local part of one, is spread over ranks."""

    mesh: Any
    """A DeviceMesh."""
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    """The shape of the whole."""


def placed(tensor: Tensor) -> Placed:
    """How a DTensor is spread over ranks (2.13; required for DTensors)."""
    spec = tensor._spec  # type: ignore[attr-defined]
    return Placed(spec.mesh, tuple(spec.placements), tuple(spec.shape))


_MIXING = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Embedding", "ScaledDot", "Softmax")
"""Beginnings of the names of autograd nodes whose outputs have other channels than their inputs."""
_NODES = 64  # how far the graph is searched: through one block of a model


def origin(tensor: Tensor) -> Placed | None:
    """How the DTensor was spread of which `tensor`, a plain one, is the local part or was computed
    element by element (2.13; without the attributes of autograd's nodes: None)."""
    try:
        node, shape = tensor.grad_fn, tensor.shape
    except torch.AcceleratorError:
        raise
    except RuntimeError:  # a view whose base was changed
        return None
    for _ in range(_NODES):
        if node is None:
            return None
        name = type(node).__name__
        if name == "_ToTorchTensorBackward":
            spec = getattr(node, "dtensor_spec", None)
            return spec and Placed(spec.mesh, tuple(spec.placements), tuple(spec.shape))
        if name.startswith(_MIXING):
            return None
        node = next((n for n, i in node.next_functions if _may_have_shape(n, i, shape)), None)
    return None


def _may_have_shape(node: Any, i: int, shape: torch.Size) -> bool:
    """Whether output `i` of an autograd node has this shape; nodes in Python do not say it."""
    metadata = getattr(node, "_input_metadata", ())
    if i < len(metadata):
        return tuple(metadata[i].shape) == shape
    return type(node).__name__ == "_ToTorchTensorBackward"


def batch_groups(module: nn.Module) -> list[tuple[str, Any]]:
    """The process groups, or the DeviceMesh, over which `module`, a wrapper of DDP or FSDP1 or what
    FSDP2 changed, has its batches spread, by name: "dp_shard" where parameters are cut, too,
    "dp_replicate" where they are not, "" for a mesh that has names. Empty for other modules (2.10,
    2.13; without the attributes: empty)."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return [("dp_replicate", module.process_group)]
    fsdp = sys.modules.get("torch.distributed.fsdp")  # where it is not loaded, nothing uses it
    with suppress(AttributeError):
        wrapper: Any = module
        if isinstance(module, getattr(fsdp, "FullyShardedDataParallel", ())):
            within = wrapper.process_group
            if wrapper.sharding_strategy.name == "NO_SHARD":
                return [("dp_replicate", within)]
            between = getattr(wrapper, "_inter_node_pg", None)
            return [("dp_replicate", between)] * (between is not None) + [("dp_shard", within)]
        if isinstance(module, getattr(fsdp, "FSDPModule", ())):
            state = wrapper._get_fsdp_state()
            # 2.10 and 2.11 have one group, or None; 2.13 and 2.15 have a list.
            groups = getattr(state, "_fsdp_param_groups", None)
            first = state._fsdp_param_group if groups is None else next(iter(groups), None)
            return [] if first is None else [("", first.mesh_info.mesh)]
    return []


def infers_shapes() -> bool:
    """Whether a pipeline's stage runs its module to learn the shapes of what it passes on (2.13;
    without functions of these names: False, and the call counts as one of the training)."""
    module = "torch.distributed.pipelining.stage"
    return _is_called_by(module, ("_forward_metadata_inference", "_shape_inference"))


def makes_optimizer_state() -> bool:
    """Whether torch.distributed.checkpoint has an optimizer step without gradients, so that it has
    a state to load (2.13; without the function: False, and it counts as a step of the training)."""
    return _is_called_by("torch.distributed.checkpoint.state_dict", ("_init_optim_state",))


def runs_checkpoint() -> bool:
    """Whether a reentrant checkpoint runs its forward, in which gradients are off (2.13; without
    the function: False, and the first step of a model that is one checkpoint is not recorded)."""
    return _is_called_by("torch.utils.checkpoint", ("forward",))


def _is_called_by(module: str, functions: tuple[str, ...]) -> bool:
    """Whether one of these functions of a module is running on this thread."""
    found = sys.modules.get(module)
    frame = None if found is None else sys._getframe().f_back  # None: nothing uses the module
    while frame is not None:
        if frame.f_code.co_name in functions and frame.f_globals is vars(found):
            return True
        frame = frame.f_back
    return False


def agree(key: str, value: str) -> str | None:
    """`value`, or what another process of the default process group said of `key` before, by the
    store that the group was made with (2.13; None without a group or a store that can)."""
    with suppress(ImportError, AttributeError, RuntimeError, ValueError, NotImplementedError):
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        if not _waits_for_its_file(store):
            return bytes(store.compare_set(key, "", value)).decode()
    return None


def _waits_for_its_file(store: Any) -> bool:
    """Whether a call of the store would wait, for half an hour, for a file that was removed."""
    while (inner := getattr(store, "underlying_store", None)) is not None:  # of a PrefixStore
        store = inner
    path = getattr(store, "path", None)  # of a FileStore
    return path is not None and not Path(path).exists()


def flat_padding(parameter: Tensor) -> int:
    """How many elements at the end of FSDP1's flat parameter fill this rank's shard up (2.13;
    without the attribute: 0, and the statistics count these zeros)."""
    return int(getattr(parameter, "_shard_numel_padded", 0))


def wait_for(tensor: Tensor) -> Tensor:
    """The values of a pending tensor (2.13; required for pending tensors)."""
    done: Tensor = tensor.trigger_wait()  # type: ignore[attr-defined]
    return done


def is_flattened(parameter: Tensor) -> bool:
    """Whether FSDP1 made `parameter` of several, flattened (2.13; without the mark: False, and such
    a parameter is taken for an ordinary one)."""
    return bool(getattr(parameter, "_fsdp_flattened", False))


def _is_loaded(tensor: Tensor, module: str, name: str) -> bool:
    # Not imported here: where the module is not loaded, there is no such tensor.
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(tensor, cls)


def shape_of_node(node: Any) -> tuple[int, ...]:
    """The shape of what an operator in an autograd graph gave first (2.13; without it: ())."""
    given = getattr(node, "_input_metadata", None)
    return tuple(given[0].shape) if given else ()


# Dynamo.

WRAPPED = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""The name of the child in wrappers of torch.compile, FSDP1 and checkpoints (all; under another
name, qualified names show the wrapper)."""


def takes_step_hooks(optimizer: object) -> bool:
    """Whether `optimizer.step` calls step hooks; wrappers that skip Optimizer.__init__ have none
    (all; required)."""
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made or changed `module` (all; `_compiled_call_impl` is required)."""
    return is_compiling_wrapper(module) or module._compiled_call_impl is not None


def is_compiling_wrapper(module: nn.Module) -> bool:
    """Whether torch.compile made `module`, around another module (all; required)."""
    # Not imported here: where dynamo is not loaded, nothing was compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


@contextmanager
def without_compiled_calls(models: Iterable[nn.Module]) -> Iterator[None]:
    """In this context, `Module.compile` has done nothing to the modules of `models` (2.13;
    `_compiled_call_impl` is required). Their code is compiled later, with the hooks that are set
    here, or compiled again."""
    kept = {module: module._compiled_call_impl for model in models for module in model.modules()}
    try:
        for module in kept:
            module._compiled_call_impl = None
        yield
    finally:
        for module, compiled in kept.items():
            module._compiled_call_impl = compiled


def trace_with_caller(code: CodeType) -> None:
    """Have dynamo trace `code` as part of its caller, never for itself (all; without it:
    dynamo compiles hooks that uncompiled code calls)."""
    with suppress(ImportError, AttributeError):
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(code, strategy)


def end_graph_at(function: Callable[..., object], reason: str) -> None:
    """Have dynamo end its graph at calls of `function`, as torch.compiler.disable does, which would
    import dynamo (all; without the marks: dynamo traces the function)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]


def mark_constant(function: Callable[..., object]) -> None:
    """Have dynamo run `function` while it traces, and take the result for a constant, as
    torch.compiler.assume_constant_result does, which would import dynamo (all; without the
    mark: dynamo traces the function, and breaks its graph there)."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def script_as(function: Callable[..., object], operator: str) -> None:
    """Have torch.jit.script take `function` for an operator (all; without it: scripting what calls
    it fails)."""
    with suppress(ImportError, AttributeError):
        from torch.jit._builtins import _register_builtin

        _register_builtin(function, operator)


def has_static_value(size: int) -> bool:
    """Whether a size is the same in every run of the graph (all; required where dynamo traces)."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return has_static_value(size)


def _output() -> Any:
    """What dynamo's trace on this thread puts out (all; None without dynamo's parts)."""
    with suppress(ImportError, AttributeError):
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return InstructionTranslator.current_tx().output
    return None


def current_translation() -> tuple[dict[str, Any], Mapping[str, Any]] | None:
    """The globals where dynamo leaves results of what it traces here, and the arguments by name."""
    output = _output()
    return output and (output.global_scope, output.root_tx.f_locals)


def becomes_cuda_graph() -> bool:
    """Whether inductor is to replay what dynamo traces here as a CUDA graph (2.13; without it: no
    code does)."""
    backend = getattr(_output(), "compiler_fn", None)
    of_call = getattr(getattr(backend, "_torchdynamo_orig_backend", backend), "config", {})
    known = sys.modules.get("torch._inductor.config")
    of_all: Any = getattr(known, "triton", None)
    return bool(of_call.get("triton.cudagraphs", getattr(of_all, "cudagraphs", False)))


def traced_operators() -> Iterator[str]:
    """The operators in whose bodies dynamo traces on this thread, innermost first (2.10, 2.15)."""
    tracer: Any = getattr(_output(), "current_tracer", None)
    while getattr(tracer, "parent", None) is not None:
        yield getattr(tracer.source_target, "__name__", "")
        tracer = tracer.parent


def guard_identity(variable: str) -> None:
    """Have the traced function's code serve this object in `variable` alone (all; without
    it: dynamo counts the graphs of like modules as recompilations of one function, up to 8)."""
    with suppress(ImportError, AttributeError):
        from torch._dynamo.guards import GuardBuilder, install_guard
        from torch._dynamo.source import LocalSource

        source = LocalSource(variable, is_input=True)
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def compiled_functions() -> Iterator[tuple[CodeType, list[str]]]:
    """The code that dynamo compiled, with the guards of each result as text (all; without
    it: no code, and functions compiled before a hook was set run without the hook)."""
    # Not imported here: where dynamo is not loaded, nothing was compiled.
    if "torch._dynamo.convert_frame" not in sys.modules:
        return
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
        from torch._dynamo.convert_frame import input_codes
    except ImportError:
        return
    for code in filter(None, [reference() for reference in input_codes.seen]):
        yield code, [str(entry.guard_manager) for entry in _debug_get_cache_entry_list(code)]


def has_compiled() -> bool:
    """Whether dynamo compiled anything (all; without it: True once dynamo is loaded)."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return False
    try:
        from torch._dynamo.convert_frame import input_codes
    except ImportError:
        return True
    return any(reference() is not None for reference in input_codes.seen)


def forget_compiled(code: CodeType) -> None:
    """Have dynamo compile `code` again at its next call (all; see `compiled_functions`)."""
    with suppress(ImportError):
        from torch._C._dynamo.eval_frame import reset_code

        reset_code(code)


def registered_parts(value: object) -> list[tuple[str, object]] | None:
    """The parts of an object whose type was registered as a pytree, each with its key as text; None
    of others (all; without it: None)."""
    with suppress(ImportError, AttributeError):
        from torch.utils import _pytree as pytree

        node = pytree.SUPPORTED_NODES.get(type(value))
        if node is not None and node.flatten_with_keys_fn is not None:
            return [(str(key), part) for key, part in node.flatten_with_keys_fn(value)[0]]
        if node is not None:
            return [(f"[{i}]", part) for i, part in enumerate(node.flatten_fn(value)[0])]
    return None


def can_save_without_version() -> bool:
    """Whether `save_without_version` does what it says, as it does not in torch 2.10."""
    try:
        from torch.fx.experimental.proxy_tensor import _get_proxies  # noqa: F401
    except ImportError:
        return False
    return True


def save_without_version(tensors: Iterable[Tensor | None]) -> None:
    """Have AOTAutograd's graphs keep `tensors` for the backward without a check of their versions
    (2.11, 2.13, 2.15). Without it, as in 2.10, a second backward would fail, and so would one after
    another backward or a closed step: no gradients are recorded then."""
    with suppress(ImportError, AttributeError):
        from torch._dynamo import compiled_autograd, config
        from torch.fx.experimental.proxy_tensor import _get_proxies

        if config.compiled_autograd or compiled_autograd.compiled_autograd_enabled:
            return  # it misses the tensors that are kept so
        for tensor in tensors:
            for proxy in () if tensor is None else _get_proxies(tensor):
                proxy.node.meta["saved_tensor_with_no_vc_check"] = True
