"""KeptBatches: what the calls of models got in the last steps; runs have that of incidents."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats._torch import is_freed, mark_constant
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.inert import Calling, marked
from hookstats.hooks.leaves import argument_leaves
from hookstats.hooks.readable import detour, reporting, unreadable
from hookstats.records.alerts import Alert, Incident
from hookstats.runs.batches import batch_bytes
from hookstats.stats.messages import error_text, notify, say

STEPS = 256
"""How many steps may wait for their incidents: as many as may wait for the recorder."""

_PLAIN = (bool, int, float, str)
"""What is kept as it is; of these alone no subclass is met as a file is read."""

_WHAT = "keeping the batches of incidents"

_Call = dict[str, Any]


class KeptBatches:
    """Copies what the calls of models get, on its device, and hands on what incidents need.

    The copies of the last steps, of at most `max_bytes` together, wait until the rules have seen
    these steps. Copies are made as a call begins: what becomes of its inputs later changes nothing.
    """

    def __init__(
        self,
        buffers: DoubleBuffer,
        max_bytes: int,
        write: Callable[[int, bytes], object],
        failures: dict[str, str],
    ) -> None:
        """write: puts the content of a step's file into the run, on the recorder's thread."""
        self._buffers = buffers
        self._max_bytes = max_bytes
        self._write = write
        self._failures = failures
        self._steps: dict[int, list[_Call]] = {}
        self._sizes: dict[int, int] = {}
        self._left = max_bytes  # for files

    def observe(
        self, step: int, model: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Copy what a call of a model, by its name, gets in the open step, if that is recorded."""
        if not self._buffers.is_observing() or detour() is not None:
            return
        with reporting(self._failures, _WHAT):
            self._copy(step, model, args, kwargs)

    def _copy(
        self, step: int, model: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        tensors = [tensor for _, tensor in argument_leaves(args, kwargs) if not _refused(tensor)]
        size = sum([tensor.nbytes for tensor in tensors])
        if self._sizes.get(step, 0) + size > self._max_bytes:
            self._drop(step)
            self._fail(f"those of step {step} have more than max_bytes = {self._max_bytes}")
            return
        call = {"model": model, "args": _copied(args), "kwargs": _copied(kwargs)}
        rng = generator_states({*self._buffers.devices, *(tensor.device for tensor in tensors)})
        self._steps.setdefault(step, []).append({**call, "rng": rng})
        self._sizes[step] = self._sizes.get(step, 0) + size
        while len(self._steps) > STEPS or sum(self._sizes.values()) > self._max_bytes:
            self._drop(next(iter(self._steps)))

    def _drop(self, step: int) -> None:
        self._steps.pop(step, None)
        self._sizes.pop(step, None)

    def keep(self, incident: Incident, then: Callable[[Incident], object]) -> None:
        """Have the run keep the inputs of the step in which an incident began, or was found; then
        hand the incident on."""
        self._keep(incident.cause)
        then(incident)

    def _keep(self, cause: Alert) -> None:
        found = ((step, self._steps.get(step)) for step in (cause.since, cause.step))
        step, calls = next((pair for pair in found if pair[1]), (0, None))
        if calls is None:
            return
        try:
            content = batch_bytes(step, _on_host(calls))
            if len(content) > self._left:
                raise RuntimeError(f"max_bytes = {self._max_bytes} are used; later ones are lost")
            self._write(step, content)
            self._left -= len(content)
        except Exception as error:
            self._fail(error_text(error))

    def _fail(self, why: str) -> None:
        notify(self._failures, _WHAT, why)


def attach(model: nn.Module | None, observe: Callable[..., object]) -> list[RemovableHandle]:
    """Have `observe` called with the arguments of a model's calls, after the hooks that say which
    calls are of the training; a ScriptModule takes no hooks."""
    if model is None or isinstance(model, torch.jit.ScriptModule):
        return []

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_dynamo_compiling():
            _leave_out()
        else:
            observe(args, kwargs)

    return [marked(model.register_forward_pre_hook(Calling(called), with_kwargs=True))]


def _leave_out() -> None:
    """Say, while dynamo traces, that compiled models have no batches."""
    say("the batches of a compiled model are not kept")


mark_constant(_leave_out)


def generator_states(devices: Iterable[torch.device]) -> dict[str, Any]:
    """The states of random number generators by name, see `BatchCall.rng`."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - of all who draw
    of_numpy = (kind, torch.from_numpy(np.array(keys, np.int64)), *rest)
    found = {"python": random.getstate(), "numpy": of_numpy, "cpu": torch.get_rng_state()}
    for device in devices:
        states = getattr(getattr(torch, device.type, None), "get_rng_state", None)
        if device.type != "cpu" and states is not None:
            found[str(device)] = states(device)
    return found


def _refused(tensor: Tensor) -> bool:
    """Whether a tensor has no memory to copy."""
    return unreadable(tensor) is not None or is_freed(tensor)


def _copied(value: Any) -> Any:
    """A copy of a call's arguments, as `BatchCall` has them."""
    if isinstance(value, Tensor):
        return _described(value) if _refused(value) else value.detach().clone()
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, (tuple, list)):
        made = [_copied(one) for one in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, Mapping):
        return {k if type(k) in _PLAIN else str(k): _copied(one) for k, one in value.items()}
    return _described(value)


def _described(value: object) -> str:
    return f"<{type(value).__qualname__}>"


def _on_host(value: Any) -> Any:
    """A copy with its tensors on the host."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_on_host, value))
    return value
