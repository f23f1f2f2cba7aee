"""Where hookstats holds a lock, an error at any line releases it."""

from __future__ import annotations

import ast
from pathlib import Path

import hookstats


def test_nothing_is_entered_inside_of_a_with() -> None:
    """CPython 3.11 has no handler for the line of a `try` or `with` in the body of another `with`:
    an error there, such as a trace function's, would leave locks and guards behind."""
    package = Path(hookstats.__file__).parent
    found = [
        f"{path.relative_to(package)}:{inner.lineno}"
        for folder in ("arena", "hooks", "watching")
        for path in (package / folder).glob("*.py")
        for outer in ast.walk(ast.parse(path.read_text()))
        if isinstance(outer, ast.With)
        for inner in ast.walk(outer)
        if inner is not outer and isinstance(inner, (ast.Try, ast.With))
    ]
    assert found == []
