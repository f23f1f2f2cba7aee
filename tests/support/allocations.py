"""Raises an error at one chosen call by which hookstats asks torch, NumPy or Arrow for memory, on
any thread, as these do where there is none.

Calls are found by tracing instructions, which Python 3.11 does as it says: 3.12.1 crashes where two
threads are traced, and 3.13.0 leaves out the first call of each function.
"""

from __future__ import annotations

import ast
import dis
import sys
import threading
from collections import Counter
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pyarrow as pa

import hookstats

TRACES_INSTRUCTIONS = sys.version_info[:2] == (3, 11)
_PACKAGE = Path(hookstats.__file__).parent
_ARROW = ("require_pyarrow().", "pa.", "parquet.")
# Functions that only describe, ask, or share memory.
_FREE = {
    *("iinfo", "finfo", "errstate", "dtype", "device", "no_grad", "set_grad_enabled", "Size"),
    *("is_tensor", "is_grad_enabled", "is_inference_mode_enabled", "promote_types", "field"),
    *("schema", "list_", "dictionary", "int32", "int64", "float64", "string", "is_list"),
    *("is_dictionary", "is_floating_point", "is_available", "is_initialized", "get_rank"),
    *(
        "from_numpy",
        "get_world_size",
        "get_num_threads",
        "current_stream",
        "is_compiling",
        "shares_memory",
    ),
}
# Methods, of whatever, that make arrays, tensors or tables.
_METHODS = {
    **dict.fromkeys(
        ("to", "cpu", "clone", "contiguous", "new_empty", "new_zeros", "double", "pin_memory"),
        "torch",
    ),
    **dict.fromkeys(("astype", "tobytes", "repeat", "reshape", "flatten", "nonzero"), "numpy"),
    **dict.fromkeys(
        (
            *("to_numpy", "to_pylist", "combine_chunks", "unify_dictionaries", "cast", "filter"),
            *("take", "slice", "append_column", "drop_columns", "select", "value_lengths"),
            *("dictionary_encode", "read_row_groups", "write_table", "getvalue", "from_batches"),
            *("from_arrays", "to_batches", "add_key_value_metadata"),
        ),
        "pyarrow",
    ),
}


class Place(NamedTuple):
    """A call in the source of hookstats."""

    file: str
    line: int
    """Where the call begins."""
    end: tuple[int, int]
    """The line and the column where it ends."""
    what: str
    library: str

    def __str__(self) -> str:
        return f"{self.what} in {Path(self.file).relative_to(_PACKAGE)}:{self.line}"

    def error(self) -> Exception:
        """What the library raises."""
        if self.library == "torch":
            return RuntimeError("injected: DefaultCPUAllocator: can't allocate memory")
        kind = pa.ArrowMemoryError if self.library == "pyarrow" else MemoryError
        error: Exception = kind("injected")
        return error


@cache
def _in_file(file: str) -> dict[tuple[int, int], Place]:
    """The calls of a source file that ask for memory, by where they end."""
    found = {}
    for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
        if isinstance(node, ast.Call) and (library := _library(node.func)) is not None:
            end = node.end_lineno or 0, node.end_col_offset or 0
            found[end] = Place(file, node.lineno, end, ast.unparse(node.func), library)
    return found


def _library(function: ast.expr) -> str | None:
    """The library that a call asks for memory."""
    if not isinstance(function, ast.Attribute) or function.attr in _FREE:
        return None
    text = ast.unparse(function)
    root = text.partition(".")[0]
    if text.startswith(_ARROW):
        return "pyarrow"
    if root in ("np", "torch") and text.count(".") == 1:
        return "numpy" if root == "np" else "torch"
    return _METHODS.get(function.attr)


_known: dict[int, tuple[CodeType, dict[int, Place]]] = {}  # by id: to hash code is slow


def _places_of(code: CodeType) -> dict[int, Place]:
    """The calls of a function that ask for memory, by the offset of their instruction."""
    if id(code) not in _known:
        found = {}
        if code.co_filename.startswith(str(_PACKAGE)):
            places = _in_file(code.co_filename)
            for one in dis.get_instructions(code):
                at = getattr(one, "positions", None)  # from Python 3.11 on
                if one.opname.startswith("CALL") and at is not None:
                    place = places.get((at.end_lineno or 0, at.end_col_offset or 0))
                    # A statement `with` calls something where the last call in it ends.
                    if place is not None and (at.lineno or 0) >= place.line:
                        found[one.offset] = place
        _known[id(code)] = code, found
    return _known[id(code)][1]


class FullMemoryAt:
    """Context: raises an error where hookstats makes a call for the `nth` time; None: nowhere.

    `made` counts the calls that were made meanwhile. Threads that begin while `tracing` is entered
    are watched, and this one if `here`.
    """

    def __init__(self, place: Place | None, nth: int = 1, *, here: bool = False) -> None:
        self.place = place
        self.nth = nth
        self.here = here
        self.made: Counter[Place] = Counter()
        self.raised = False
        self._on = False

    def tracing(self) -> _Tracing:
        return _Tracing(self)

    def __enter__(self) -> FullMemoryAt:
        self._on = True
        if self.here:
            sys.settrace(self.trace)
        return self

    def __exit__(self, *exc: object) -> None:
        self._on = False
        if self.here:
            sys.settrace(None)

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A call of a function: have its instructions looked at if it is one that asks."""
        if not self._on or self.raised:
            return None
        places = _places_of(frame.f_code)
        if not places or not (self.place is None or self.place in places.values()):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True

        def look(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode" and (place := places.get(frame.f_lasti)) is not None:
                self.made[place] += 1
                due = place == self.place and self.made[place] == self.nth
                if due and self._on and not self.raised:
                    self.raised = True
                    raise place.error()
            return look

        return look


class _Tracing:
    """Context: threads that begin in it are watched by a FullMemoryAt."""

    def __init__(self, full: FullMemoryAt) -> None:
        self._full = full

    def __enter__(self) -> None:
        threading.settrace(self._full.trace)

    def __exit__(self, *exc: object) -> None:
        threading.settrace(None)
