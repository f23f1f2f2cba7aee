"""Silence: compiled code that calls watched modules and leaves nothing of the calls.

Whatever the reason - a dynamo that leaves the hooks out, a backend that drops the operators, a
transform of torch.func around the module - a step is closed, and no module of a class was called as
far as its sites know, while dynamo has compiled code that calls modules of this class.
"""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from hookstats.arena.arena import Arena
from hookstats.hooks.dynamo import compiled_callers, described
from hookstats.hooks.widths import Sites
from hookstats.stats.warning import warn


class Silence:
    """Reports the classes of watched modules of which compiled code leaves nothing, once."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.failures: dict[str, str] = {}
        """What is not recorded, and the compiled code that leaves it out."""
        self._silent: defaultdict[type[nn.Module], list[list[Sites]]] = defaultdict(list)
        self._looks = 0

    def add(self, module: nn.Module, sites: list[Sites]) -> None:
        """Expect calls of `module`, which `sites`, also those added later, are to count."""
        self._silent[type(module)].append(sites)

    def look(self) -> None:
        """Warn if a recorded step ended in silence.

        Waits for the devices where compiled code is all that calls some class. Looks after 1, 2, 4,
        8, ... recorded steps, as modules that nothing calls stay silent for good.
        """
        self._looks += 1
        if not self._silent or self._looks & (self._looks - 1):
            return
        with self._arena.lock:
            called = [
                cls
                for cls, known in self._silent.items()
                if any(sites.called for made in known for sites in made)
            ]
        for cls in called:
            del self._silent[cls]
        callers = list(compiled_callers(self._silent))
        if not callers:
            return
        where = ", ".join(described(code) for code, _ in callers[:3]) + ", ..." * (len(callers) > 3)
        found = set[type[nn.Module]]().union(*(called for _, called in callers))
        names = ", ".join(sorted(cls.__name__ for cls in found))
        self._silent.clear()
        self.failures[f"recording {names} in compiled code"] = f"{where} left nothing"
        warn(
            f"hookstats: nothing is recorded of {names}: compiled code calls modules of these "
            f"classes and leaves nothing of the watched ones: {where}; they are recorded where "
            "they are not compiled"
        )
