"""Contexts: what calls of watched models are in: phases, and masks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.masks import Masks
from hookstats.hooks.observe import Point
from hookstats.hooks.toggle import HookToggle
from hookstats.records.keys import check_phase
from hookstats.watching.observers import Observers


class Contexts:
    """The part of a `Watch` that makes contexts."""

    _closed = True  # until it is open
    _buffers: DoubleBuffer
    _masks: Masks
    _observers: Observers
    _phases: dict[str, int]
    _handles: list[RemovableHandle]
    _toggle: HookToggle

    def phase(self, name: str) -> AbstractContextManager[None]:
        """In this context, calls of modules are in a phase: ``with watch.phase("fake"): ...``.

        Each phase has hooks and statistics of its own, whose kinds begin with its name:
        "fake:output". So those of a module with several roles, such as the discriminator of a GAN,
        stay apart, and so do those of an evaluation, ``with watch.phase("evaluation")``, or of the
        time steps of a recurrent cell. Gradients belong to the phase of their forward, wherever the
        backward runs. All calls count, also without gradients in eval mode. An inner phase replaces
        the outer one. Parameters, their gradients and updates have no phases.

        Args:
            name: letters, digits, "_" and "-", a letter or "_" first.

        Raises:
            ValueError: the name has other characters, or the watch is closed.
        """
        self._check_open()
        check_phase(name)
        if name not in self._phases:
            number = len(self._phases) + 1
            for module, handles in self._observers.attach_phase(name, number):
                self._keep(module, handles)
            self._phases[name] = number
        return _Phase(self._buffers, self._phases[name])

    def attach_point(self, name: str, point: Point) -> None:
        """Set the hooks of a point of `observe`, at its first call."""
        self._keep(point, self._observers.attach_point(name, point, self._phases))

    def _keep(self, module: nn.Module, handles: Sequence[RemovableHandle]) -> None:
        """Remove these hooks of a module at the end, and take them off while nothing is due."""
        self._handles += handles
        self._toggle.add(module, handles)

    def mask(self, mask: Tensor) -> AbstractContextManager[None]:
        """In this context, the statistics of calls leave padding out: ``with watch.mask(m): ...``.

        They are those of the rows where the mask is not 0, of values and of their gradients,
        wherever the backward runs; the calls are those of this thread. Rows are those of tensors
        [batch, time, ...] and [batch * time, ...] whose channels are along a later dimension.
        Others, such as the weights of attention [batch, heads, time, time], have all rows in the
        statistics, and `coverage` counts them as `unmasked`. Parameters are never masked. An inner
        mask replaces the outer one; the argument that ``watch(mask=...)`` names is within the
        context.

        Args:
            mask: bool or integers [batch, time] or [rows], on the device of the tensors; copied
                here.

        Raises:
            ValueError: it is something else, or the watch is closed.
        """
        self._check_open()
        return self._masks.within(mask)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the watch is closed: expected an open one, from another watch()")


class _Phase(AbstractContextManager[None]):
    """The context of a phase. No generator: dynamo cannot end its graph in one."""

    def __init__(self, buffers: DoubleBuffer, phase: int) -> None:
        self._buffers = buffers
        self._phase = phase
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self._buffers.phase)
        self._buffers.enter(self._phase)

    def __exit__(self, *exc: object) -> None:
        self._buffers.enter(self._before.pop())


for _function in (_Phase.__enter__, _Phase.__exit__):
    break_graphs(_function, "a phase of hookstats begins or ends")
break_graphs(Contexts.phase, "a phase of hookstats is made")
break_graphs(Contexts.mask, "a mask of hookstats is made")
