"""torch for the modules that runs are read with: where nothing has imported torch yet, it is
imported when something of it is first used.

What reads a run computes with NumPy, and to import torch takes longer than most of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any


def is_imported() -> bool:
    """Whether anything has imported torch."""
    return "torch" in sys.modules


if TYPE_CHECKING or is_imported():
    import torch
else:

    class _Later:
        """Has what torch has. Its first use gives modules torch itself: dynamo traces no other."""

        def __getattr__(self, name: str) -> Any:
            import torch

            for of, module in list(sys.modules.items()):
                if of.startswith("hookstats.") and vars(module).get("torch") is self:
                    vars(module)["torch"] = torch
            return getattr(torch, name)

    torch = _Later()

__all__ = ["is_imported", "torch"]
