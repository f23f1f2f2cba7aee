"""numbers(): a column of a table as NumPy has it, without pandas, which `to_numpy` imports and
pyarrow's `to_pandas_dtype` needs before pyarrow 26."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.runs.format import require_pyarrow


def numbers(column: Any, *, nulls: bool = True) -> NDArray[Any]:
    """The integers or floats of a pyarrow.Array or ChunkedArray; read-only, and a copy only where
    there are nulls or several chunks.

    nulls: have NaN for them, rather than raise a pyarrow.ArrowInvalid, which is a ValueError.
    """
    if hasattr(column, "chunks"):
        if not column.num_chunks:  # combined, these import pandas
            column = require_pyarrow().nulls(0, column.type)
        else:
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        array: NDArray[Any] = column.to_numpy(zero_copy_only=not nulls)
        return array
    return np.from_dlpack(column)
