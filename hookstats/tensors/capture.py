"""capture(): keeps the tensors that a model's modules take and return, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import overload

import torch
from torch import Tensor, nn

from hookstats.hooks.attach import MODULE_KINDS, check_kinds, check_model, make_reachable, select
from hookstats.hooks.gradients import why_no_gradient
from hookstats.hooks.selection import Selector
from hookstats.records.reasons import LEAF
from hookstats.stats.arguments import check_integer, check_optional_integer
from hookstats.tensors.capture_handles import Capture, TensorCapture
from hookstats.tensors.capture_hooks import GRAD
from hookstats.tensors.recorder import Limits, Recorder

KeyFunction = Callable[[str, nn.Module], Hashable]
"""From a module's name and the module to the key of its group."""

_DEFAULT_KINDS = ("output", "grad_output")


@overload
def capture(
    source: nn.Module,
    include: Selector | None = None,
    exclude: Selector | None = None,
    kinds: Collection[str] = ("output", "grad_output"),
    *,
    key: KeyFunction | None = None,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> Capture: ...


@overload
def capture(
    source: Tensor,
    *,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> TensorCapture: ...


def capture(
    source: nn.Module | Tensor,
    include: Selector | None = None,
    exclude: Selector | None = None,
    kinds: Collection[str] = _DEFAULT_KINDS,
    *,
    key: KeyFunction | None = None,
    clone: bool = True,
    device: torch.device | str | None = None,
    calls: int | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> Capture | TensorCapture:
    """Keep the tensors of a model's calls, forward and backward paired; or a tensor's gradients.

    Hooks are set at once, and removed by `close` or at the end of a with statement. Training
    results keep every bit: nothing is set but forward hooks and tensor hooks. The captured tensors
    are detached, and the capture alone holds them, not the model or its graph. A capture to which
    there is no reference captures nothing.

    Args:
        source: a model, not compiled yet; or a tensor that requires a gradient, which may be in the
            middle of a graph: the gradient of every backward is kept.
        include, exclude: which modules, as in `watch`; by default those without children.
        kinds: "input", "output": the tensors of a module's calls. "grad_output": the gradients of
            its outputs. "grad_input": the gradients of its inputs, each the total over all uses of
            the tensor.
        key: a function (name, module) -> hashable by which `Capture.by_key` groups the calls.
        clone: whether to keep copies. False keeps the tensors' own memory, which saves the copy.
            Then later changes in place also change the captured tensors, a view keeps all of its
            base's memory alive, and a gradient may share memory with ``.grad``.
        device: where to keep copies, such as "cpu"; by default where the tensors are.
        calls: the most calls to keep per module, or backwards of a tensor: a uniform sample of all.
            Modules that are called equally often keep the same calls. Sampling does not use torch's
            random numbers.
        seed: the seed of the sample.
        max_bytes: the most bytes of elements to keep. Beyond this, whole calls are dropped, the
            oldest of any module first; a call that is too large by itself is dropped alone.

    A forward that runs in a backward recomputes a checkpoint's activations and is no call: the
    first forward was the call, and gets the gradients. (With a reentrant checkpoint, the first
    forward has no graph and no gradients.) A call that raises has an input and no output. Tensors
    whose memory does not hold their values (sparse, fake, ...) are left out; of a DTensor, this
    rank's part is kept. `Capture.coverage` counts all of these. A model that is compiled while it
    is captured runs in pieces, without fullgraph.

    Example:
        >>> with hs.capture(model, include="layer1.*") as c:
        ...     model(x).sum().backward()
        >>> c["layer1.conv", "output"][0].shape, c["layer1.conv", "grad_output"][0].shape
        >>> with hs.capture(y) as c:
        ...     y.square().sum().backward()
        >>> c.grads[0]

    Raises:
        ValueError: a bad argument, a selection that matches nothing, a compiled model, a tensor
            that requires no gradient.
    """
    if not isinstance(clone, bool):
        raise ValueError(f"clone = {clone!r}: expected True or False")
    limits = Limits(
        clone=clone,
        device=_device(device),
        calls=check_optional_integer("calls", calls, 1),
        seed=check_integer("seed", seed, None),
        max_bytes=check_optional_integer("max_bytes", max_bytes, 1),
    )
    if isinstance(source, Tensor):
        for name, value in (("include", include), ("exclude", exclude), ("key", key)):
            if value is not None:
                raise ValueError(f"{name} = {value!r}: expected None, since source is a tensor")
        if kinds is not _DEFAULT_KINDS:
            raise ValueError(f"kinds = {kinds!r}: expected no kinds, since source is a tensor")
        reason = why_no_gradient(source)
        if reason not in (None, LEAF):
            raise ValueError(f"source: {reason}; expected a tensor that requires a gradient")
        return TensorCapture(Recorder((GRAD,), limits), source)
    if not isinstance(source, nn.Module):
        raise ValueError(f"source = {source!r}: expected a torch.nn.Module or a torch.Tensor")
    check_model(source)
    check_kinds(kinds, MODULE_KINDS)
    modules = select(source, kinds, include, exclude, "capture").modules
    keys = None if key is None else _keys(key, modules)
    make_reachable(modules)
    kinds = tuple(kind for kind in MODULE_KINDS if kind in kinds)
    return Capture(Recorder(kinds, limits), modules, keys)


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device = {device!r}: expected a torch.device or its name") from error


def _keys(key: KeyFunction, modules: Mapping[str, nn.Module]) -> dict[str, Hashable]:
    if not callable(key):
        raise ValueError(f"key = {key!r}: expected a function (name, module) -> hashable")
    keys = {name: key(name, module) for name, module in modules.items()}
    try:
        set(keys.values())
    except TypeError as error:
        raise ValueError(f"key: {error}; expected hashable values") from error
    return keys
