"""Columns as NumPy has them: empty, in chunks, with nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hookstats.runs.arrays import numbers

TYPES = ("uint8", "uint16", "int32", "int64", "uint64", "float32", "float64")


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("chunks", [None, [], [[]], [[1, 2]], [[1], [], [2, 3]]])
def test_numbers_have_the_type_of_their_column(name: str, chunks: Any) -> None:
    kind = pa.type_for_alias(name)
    column = pa.array([], kind) if chunks is None else pa.chunked_array(chunks, kind)
    found = numbers(column)
    assert found.dtype == np.dtype(name)
    assert found.tolist() == [value for chunk in chunks or [] for value in chunk]


def test_nulls_are_nan_or_an_error() -> None:
    column = pa.array([1.0, None], pa.float32())
    assert np.array_equal(numbers(column), [1.0, np.nan], equal_nan=True)
    with pytest.raises(ValueError, match="with 1 nulls"):
        numbers(column, nulls=False)
