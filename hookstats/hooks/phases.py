"""Phases: which role the watched models have in a call, such as a discriminator's real and fake."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from hookstats._torch import current_graph_task_id, current_node_number, sequence_number
from hookstats.hooks.dynamo import break_graphs
from hookstats.records.keys import EVALUATION

_MOST_MARKS = 4096  # of forwards whose backward may be to come


class Phases:
    """The phase of a watch now, and those of the forwards before, "" being training.

    A backward that runs a checkpoint's forward again does so in the phase of that forward: the
    numbers of autograd's nodes tell when they were made.
    """

    def __init__(self, is_evaluation: Callable[[], bool] = lambda: False) -> None:
        """is_evaluation: whether a call now is one of an evaluation."""
        self.now = ""
        """The phase that was entered."""
        self.keeps_evaluation = False
        """Whether calls of an evaluation are a phase."""
        self._is_evaluation = is_evaluation
        self._marks: deque[tuple[int, str]] = deque(maxlen=_MOST_MARKS)

    def within(self, name: str) -> AbstractContextManager[None]:
        """In this context, calls are in this phase."""
        return _Within(self, name)

    def enter(self, name: str) -> None:
        """Calls from now on are in this phase."""
        self._marks.append((sequence_number(), name))
        self.now = name

    def leaves_out(self) -> bool:
        """Whether a call now is one of an evaluation that nobody put into a phase."""
        return not self.now and self._is_evaluation()

    def of_call(self) -> str:
        """The phase of a call now."""
        if self._marks and current_graph_task_id() != -1:
            return self._of_forward(current_node_number())
        if self.now or not self.keeps_evaluation:
            return self.now
        return EVALUATION if self._is_evaluation() else ""

    def _of_forward(self, node: int | None) -> str:
        """The phase in which a node of autograd was made."""
        marks = list(self._marks)
        place = -1 if node is None else bisect_right(marks, node, key=lambda mark: mark[0]) - 1
        return marks[place][1] if place >= 0 else ""


class _Within(AbstractContextManager[None]):
    """The context of a phase. No generator: dynamo cannot end its graph in one."""

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self._name = name
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(self._phases.now)
        self._phases.enter(self._name)

    def __exit__(self, *exc: object) -> None:
        self._phases.enter(self._before.pop())


_WHY = "a phase of hookstats begins or ends"
for _function in (_Within.__enter__, _Within.__exit__):
    break_graphs(_function, _WHY)
