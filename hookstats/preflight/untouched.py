"""untouched(): a context in which a model may be called and changed, and is bitwise restored."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Snapshot:
    """The attributes of a model's modules, and the values of their tensors.

    Each module's attributes are kept, the entries of dictionaries, lists and sets among them,
    copies of its tensors (parameters, buffers, and tensors that are plain attributes), and which
    tensors are the gradients of parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, dict(vars(module))) for module in model.modules()]
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        for _, attributes in self._modules:
            for value in attributes.values():
                self._keep(value)

    def _keep(self, value: Any) -> None:
        if isinstance(value, Tensor):
            if id(value) not in self._tensors and not value.is_meta:
                self._tensors[id(value)] = value, value.detach().clone()
        elif isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
        elif isinstance(value, (dict, list, set)):
            self._containers.append((value, value.copy()))
            items = value.values() if isinstance(value, dict) else value
            for item in items:
                if isinstance(item, Tensor):
                    self._keep(item)

    def reset(self) -> None:
        """Make the model what it was, but for the values of parameters and the hooks of a watch."""
        self.restore(parameters=False)
        _unwatch(self._modules[0][0])

    def restore(self, *, parameters: bool = True) -> None:
        """Make the model what it was; parameters: whether to restore their values, too."""
        for module, attributes in self._modules:
            own = vars(module)
            if not _is_same(own, attributes):
                own.clear()
                own.update(attributes)
        for value, items in self._containers:
            if not _is_same(value, items):
                value.clear()
                value.extend(items) if isinstance(value, list) else value.update(items)
        for generator, state in self._generators:
            generator.set_state(state)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for value, copy in self._tensors.values():
                # To write what is there anyway would spoil a graph that waits for its backward.
                if (parameters or not isinstance(value, nn.Parameter)) and _differ(value, copy):
                    value.copy_(copy)


def _differ(value: Tensor, copy: Tensor) -> bool:
    one, other = (tensor.detach().flatten() for tensor in (value, copy))
    if one.layout is not torch.strided or one.is_quantized:
        return True
    return not torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _is_same(now: Any, before: Any) -> bool:
    """Whether a container has the very items that it had."""
    if isinstance(before, set):
        return bool(now == before)
    if len(now) != len(before):
        return False
    if isinstance(before, dict):
        return all(a is b and now[a] is before[b] for a, b in zip(now, before, strict=True))
    return all(a is b for a, b in zip(now, before, strict=True))


@contextmanager
def untouched(model: nn.Module) -> Iterator[Snapshot]:
    """A context that leaves the model and the random number generators as they were.

    Modes, gradients, buffers, parameters and other attributes of modules are restored, and so are
    the generators of torch on all devices in use, of `random` and of NumPy. Hooks of a watch are
    off meanwhile; compiled models run uncompiled.
    """
    snapshot = Snapshot(model)
    numpy = sys.modules.get("numpy")
    numbers, state = random.getstate(), None if numpy is None else numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if _has_cuda() else ()
    with ExitStack() as stack:
        stack.callback(snapshot.restore)
        stack.callback(random.setstate, numbers)
        if numpy is not None:
            stack.callback(numpy.random.set_state, state)
        stack.enter_context(torch.random.fork_rng(list(devices)))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.enable_grad())
        _unwatch(model)
        yield snapshot


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def reseed() -> None:
    """Have all generators begin anew; those of devices that are not in use stay as they are, where
    torch.manual_seed would set them when their device is used first."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if _has_cuda():
        torch.cuda.manual_seed_all(0)


def _unwatch(model: nn.Module) -> None:
    """Take the hooks of hookstats off the modules; restoring brings them back."""
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = vars(module).get(name, {})
            for key, hook in list(hooks.items()):
                if type(hook).__module__.startswith("hookstats."):
                    del hooks[key]
