"""Where things are, and what another interpreter needs to import them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""

TESTS = ROOT / "tests"
DATA = TESTS / "data"


def python_path(*before: str | Path) -> str:
    """PYTHONPATH for an interpreter that imports hookstats, `support`, and modules in `before`."""
    return os.pathsep.join(map(str, (*before, TESTS, ROOT)))
