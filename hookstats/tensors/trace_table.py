"""A trace as tables, in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hookstats.records.keys import label
from hookstats.show.terminal import format_number
from hookstats.stats.printable import aligned, printable
from hookstats.tensors.calls import Call, TracedTensor

_CALLS = ("call", "type", "input", "output", "dtype", "mean", "std", "non-finite")
_GRADIENTS = ("gradient", "shape", "dtype", "mean", "std", "non-finite")
_NUMBERS = 3  # the last columns of both
_MOST = 3  # tensors of a call that are shown

Rows = Sequence[Sequence[str]]


def as_text(calls: Sequence[Call], gradients: Sequence[TracedTensor], selected: bool) -> str:
    """One line per call, indented by its depth, then one line per gradient.

    selected: whether include or exclude was given, and may have left calls out.
    """
    blocks = [_aligned([columns, *rows]) for columns, rows in _tables(calls, gradients)]
    return "\n\n".join(blocks) or _empty(selected)


def _empty(selected: bool) -> str:
    return (
        f"nothing ran{' that include and exclude leave' * selected}: call the model in the `with` "
        "block, or give trace() its arguments"
    )


def _tables(
    calls: Sequence[Call], gradients: Sequence[TracedTensor]
) -> Iterable[tuple[tuple[str, ...], Rows]]:
    if calls:
        repeated = {call.name for call in calls if call.index}
        yield _CALLS, [_call_row(call, call.name in repeated) for call in calls]
    if gradients:
        yield (
            _GRADIENTS,
            [(one.name, _shape(one), one.dtype, *_numbers(one)) for one in gradients],
        )


def _call_row(call: Call, repeated: bool) -> tuple[str, ...]:
    name = "  " * call.depth + label(call.name) + (f"@{call.index}" if repeated else "")
    main = call.output
    inputs = _shapes(call.inputs, main)
    if call.outputs is None:
        return name, call.type, inputs, "", "", "", "", "raised" if call.error else "stopped"
    dtype = main.dtype if main else ""
    return name, call.type, inputs, _shapes(call.outputs, main), dtype, *_numbers(main)


def _numbers(tensor: TracedTensor | None) -> tuple[str, str, str]:
    if tensor is None or tensor.mean is None or tensor.std is None:
        return "", "", ""
    return format_number(tensor.mean), format_number(tensor.std), str(tensor.nonfinite)


def _shapes(tensors: Sequence[TracedTensor], main: TracedTensor | None) -> str:
    """The shapes, each with its dtype if that differs from the dtype in its column."""
    shown = [
        _shape(tensor) + ("" if main and tensor.dtype == main.dtype else f" {tensor.dtype}")
        for tensor in tensors[:_MOST]
    ]
    return ", ".join([*shown, *["..."] * (len(tensors) > _MOST)])


def _shape(tensor: TracedTensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _aligned(rows: Rows) -> str:
    rows = [[printable(cell) for cell in row] for row in rows]
    columns = len(rows[0])
    return "\n".join(aligned(rows, range(columns - _NUMBERS, columns), gap=" "))
