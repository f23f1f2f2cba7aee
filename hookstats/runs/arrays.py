"""Arrow arrays from buffers: `pyarrow.array` imports pandas, which takes a quarter of a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.runs.decode import numbers
from hookstats.runs.format import require_pyarrow
from hookstats.stats.merge import offsets_of


def numbers_as(values: NDArray[Any], type: Any) -> Any:
    """A pyarrow.Array of a type of numbers."""
    pa = require_pyarrow()
    found = np.ascontiguousarray(values, type.to_pandas_dtype())
    return pa.Array.from_buffers(type, len(found), [None, pa.py_buffer(found)])


def optional_as(values: Sequence[int | None], type: Any) -> Any:
    """A pyarrow.Array of a type of numbers, some of which may be missing."""
    pa = require_pyarrow()
    found = np.array([one or 0 for one in values], type.to_pandas_dtype())
    there = _there([one is None for one in values])
    return pa.Array.from_buffers(type, len(found), [there, pa.py_buffer(found)])


def lists_as(values: Sequence[Sequence[int] | None], type: Any) -> Any:
    """A pyarrow.ListArray of a type of lists of numbers."""
    pa = require_pyarrow()
    flat = np.array(list(chain.from_iterable(one or () for one in values)), np.int64)
    offsets = _offsets([len(one or ()) for one in values])
    there = _there([one is None for one in values])
    children = [numbers_as(flat, type.value_type)]
    return pa.Array.from_buffers(type, len(values), [there, offsets], children=children)


def texts_of(values: Sequence[str | None]) -> Any:
    """A pyarrow.DictionaryArray of texts."""
    pa = require_pyarrow()
    names = list(dict.fromkeys(one for one in values if one is not None))
    codes = {name: code for code, name in enumerate(names)}
    found = [name.encode() for name in names]
    buffers = [None, _offsets([len(one) for one in found]), pa.py_buffer(b"".join(found))]
    indices = [None if one is None else codes[one] for one in values]
    return pa.DictionaryArray.from_arrays(
        optional_as(indices, pa.int32()), pa.Array.from_buffers(pa.string(), len(found), buffers)
    )


def chosen(texts: Any, rows: NDArray[Any]) -> Any:
    """These rows of a pyarrow.DictionaryArray in which none is missing."""
    pa = require_pyarrow()
    indices = numbers(texts.indices)
    return pa.DictionaryArray.from_arrays(numbers_as(indices[rows], pa.int32()), texts.dictionary)


def _offsets(lengths: Sequence[int]) -> Any:
    return require_pyarrow().py_buffer(offsets_of(lengths).astype(np.int32))


def _there(missing: Sequence[bool]) -> Any:
    """A bit for each element, whether it is there; None where all are."""
    if not any(missing):
        return None
    bits = np.packbits(~np.array(missing, bool), bitorder="little")
    return require_pyarrow().py_buffer(bits)
