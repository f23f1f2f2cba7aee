"""Contexts: what calls of watched models are in: phases, and masks."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor

from hookstats.arena.arena import Arena
from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.masks import Masks
from hookstats.hooks.phases import Phases
from hookstats.records.keys import check_phase


class Contexts:
    """The part of a `Watch` that makes contexts."""

    _closed = True  # until it is open
    _arena: Arena
    _phases: Phases
    _masks: Masks

    def phase(self, name: str) -> AbstractContextManager[None]:
        """In this context, calls of modules are in a phase: ``with watch.phase("fake"): ...``.

        Each phase has statistics of its own, whose kinds begin with its name: "fake:output". So
        those of a module with several roles, such as the discriminator of a GAN, stay apart.
        Gradients belong to the phase of their forward, wherever the backward runs, and so does the
        recomputation of a checkpoint. All calls count, those of an evaluation, too. An inner phase
        replaces the outer one. Parameters, their gradients and updates have no phases.

        Args:
            name: letters, digits, "_" and "-", a letter or "_" first.

        Raises:
            ValueError: the name has other characters, or the watch is closed.
        """
        self._check_open()
        check_phase(name)
        self._arena.route()
        return self._phases.within(name)

    def mask(self, mask: Tensor) -> AbstractContextManager[None]:
        """In this context, the statistics of calls leave padding out: ``with watch.mask(m): ...``.

        They are those of the rows where the mask is not 0, of values and of their gradients,
        wherever the backward runs. Rows are those of tensors [batch, time, ...] and
        [batch * time, ...] whose channels are along a later dimension. Others, the weights of
        attention [batch, heads, time, time], and compiled code have all rows in the statistics, and
        `coverage` counts them as `unmasked`. Parameters are never masked. An inner mask replaces
        the outer one; the argument that ``watch(mask=...)`` names is within the context.

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


break_graphs(Contexts.phase, "a phase of hookstats is made")
break_graphs(Contexts.mask, "a mask of hookstats is made")
