"""Optimizers: those of a watch; a step is over once all of them have stepped."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator

from torch.optim import Optimizer

from hookstats.stats.messages import warn

_OPEN_FOR = 200  # steps of an optimizer; those of GANs have fewer for one of the other's


class Optimizers:
    """The optimizers of a watch, which are not kept alive, and those that stepped in the open step.

    In a backward, optimizers may step on several threads: `note` is called under a lock.
    """

    def __init__(self) -> None:
        self._known: list[weakref.ref[Optimizer]] = []
        self._stepped = Counter[int]()  # how often, in the open step

    def __len__(self) -> int:
        """How many there were."""
        return len(self._known)

    def __iter__(self) -> Iterator[Optimizer]:
        """Those that are alive."""
        return filter(None, [known() for known in self._known])

    def add(self, optimizer: Optimizer) -> None:
        self._known.append(weakref.ref(optimizer))

    def note(self, optimizer: int) -> bool:
        """Note that one of them steps, by its number; whether all have now."""
        if len(self._known) == 1:  # as a rule
            return True
        self._stepped[optimizer] += 1
        if all(i in self._stepped or known() is None for i, known in enumerate(self._known)):
            self.begin()
            return True
        return False

    def begin(self) -> None:
        """Begin a step, in which none has stepped."""
        self._stepped.clear()

    def remind(self, optimizer: int, step: int) -> None:
        """Warn if the open step, a number, has many steps of one of them, and none of others."""
        times = self._stepped[optimizer]
        if times != _OPEN_FOR:
            return
        others = [known() for i, known in enumerate(self._known) if i not in self._stepped]
        missing = ", ".join(type(one).__name__ for one in others if one is not None)
        warn(
            f"hookstats: step {step} is still open after {times} steps of an optimizer, "
            f"as {missing} has not stepped; expected all optimizers of a watch to step, or "
            "Watch.step() to close steps"
        )
