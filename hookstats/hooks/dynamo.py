"""What hooks tell dynamo: which code to trace, which to run as it is, what to compile again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from hookstats import _torch


def run_untraced(function: Callable[..., object]) -> None:
    """Have dynamo trace `function` as part of its caller, but never for itself.

    Where code that dynamo does not trace calls `function`, it runs as if there were no dynamo.
    """
    _torch.trace_with_caller(function.__code__)


def break_graphs(function: Callable[..., object], reason: str) -> None:
    """Have dynamo end its graph at calls of `function`; an error of fullgraph says `reason`."""
    _torch.end_graph_at(function, reason)
    run_untraced(function)


_scopes: dict[int, dict[str, Any]] = {}
"""By id, the globals in which dynamo left results of our functions."""


def tidy() -> None:
    """Remove what tracing left in the globals of compiled functions, where nothing reads it."""
    while _scopes:
        _, scope = _scopes.popitem()
        for name in [name for name in scope if name.startswith("sub_hookstats_")]:
            del scope[name]


def look_at_tracer() -> None:
    """Have dynamo guard on the module that it compiles, and note what `tidy` has to remove.

    The graphs of sibling modules cannot serve this module: each graph has the states of one
    module's sites. Where dynamo knows that, it does not count all these graphs as recompilations
    of one function, of which it allows 8.
    """
    traced = _torch.current_translation()
    if traced is None:
        return
    scope, variables = traced
    _scopes[id(scope)] = scope
    for name, value in variables.items():
        if isinstance(value, nn.Module):
            _torch.guard_identity(name)


def reset_compiled(types: Collection[type[nn.Module]]) -> list[str]:
    """Have dynamo forget the functions that it compiled and that may call modules of `types`.

    Their compiled code would run on without the hooks that are set now. Returns the names of
    functions that are neither torch's nor of hookstats.
    """
    found = list(compiled_callers(types))
    for code, _ in found:
        _torch.forget_compiled(code)
    return [described(code) for code, _ in found if not code.co_filename.startswith(_LIBRARIES)]


_LIBRARIES = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)


def compiled_callers(
    types: Collection[type[nn.Module]],
) -> Iterator[tuple[CodeType, set[type[nn.Module]]]]:
    """The code that dynamo compiled and that may call modules of `types`, with those of `types`
    that it may call."""
    for code, guards in _torch.compiled_functions():
        # Every module that the code calls has a guard on its type.
        called = {cls for cls in types if any(f", {id(cls)})" in text for text in guards)}
        if called:
            yield code, called


def described(code: CodeType) -> str:
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
