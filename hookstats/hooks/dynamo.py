"""What dynamo is told of hooks: which code it is to trace, which to run, which to compile again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from torch import nn


def run_untraced(function: Callable[..., object]) -> None:
    """Have dynamo trace `function` as a part of what calls it, but never for itself.

    Where it is called from code that dynamo does not trace, it runs as if there were no dynamo.
    """
    # As whatever here is not public: a torch that has it elsewhere does without.
    with suppress(ImportError, AttributeError):
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )

        strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
        set_code_exec_strategy(function.__code__, strategy)


def break_graphs(function: Callable[..., object], reason: str) -> None:
    """Have dynamo end its graph where `function` is called; where it must not, it says `reason`."""
    # All that torch.compiler.disable does, but for importing dynamo: a second.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    run_untraced(function)


_scopes: dict[int, dict[str, Any]] = {}
"""By id, the globals in which dynamo left results of the functions above."""


def tidy() -> None:
    """Remove what tracing left in the globals of compiled functions, where nothing reads it."""
    while _scopes:
        _, scope = _scopes.popitem()
        for name in [name for name in scope if name.startswith("sub_hookstats_")]:
            del scope[name]


def look_at_tracer() -> None:
    """Have dynamo guard on the module that it compiles, and note what `tidy` has to see to.

    The graphs of its siblings cannot serve it: each has the states of its own sites. Where dynamo
    knows that, it does not count them all as recompilations of one function, of which it allows 8.
    """
    with suppress(ImportError, AttributeError):
        from torch._dynamo.guards import GuardBuilder, install_guard
        from torch._dynamo.source import LocalSource
        from torch._dynamo.symbolic_convert import InstructionTranslator

        output = InstructionTranslator.current_tx().output
        _scopes[id(output.global_scope)] = output.global_scope
        for name, value in output.root_tx.f_locals.items():
            if isinstance(value, nn.Module):
                source = LocalSource(name, is_input=True)
                install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def reset_compiled(types: Collection[type[nn.Module]]) -> list[str]:
    """Have dynamo forget the functions that it compiled and that may call modules of `types`.

    Their code would run as it is, without hooks set now. Returns their names, none as a rule.
    """
    # Not imported here: without it nothing was compiled, and it takes its time.
    if "torch._dynamo.convert_frame" not in sys.modules:
        return []
    try:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
        from torch._dynamo.convert_frame import input_codes
    except ImportError:  # as above
        return []

    marks = [f", {id(cls)})" for cls in types]
    found = []
    for code in filter(None, [reference() for reference in input_codes.seen]):
        guards = [str(entry.guard_manager) for entry in _debug_get_cache_entry_list(code)]
        # There is one on the type of every module that is called.
        if any(mark in text for text in guards for mark in marks):
            reset_code(code)
            found.append(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})")
    return found
