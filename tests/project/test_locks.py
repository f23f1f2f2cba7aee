"""Where hookstats holds a lock, an error at any line, or an interrupt, releases it."""

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


def test_training_enters_no_lock_of_pythons_own_code() -> None:
    """An interrupt in `__enter__` of a Condition, which Event has, leaves that locked for ever."""
    package = Path(hookstats.__file__).parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for folder in ("arena", "hooks", "rules", "runs", "sinks", "watching")
        for path in (package / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier")
        and isinstance(node.value, ast.Name)
        and node.value.id == "threading"
    ]
    assert found == []
