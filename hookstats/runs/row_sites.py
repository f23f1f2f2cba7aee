"""row_sites(): which sites the rows of a part are of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Key, in_phase
from hookstats.records.sparse import Int64
from hookstats.runs.arrays import numbers
from hookstats.runs.format import PHASE_COLUMN


def row_sites(
    table: Any, keys: dict[Key, int], rows: NDArray[np.bool_] | slice = slice(None)
) -> Int64:
    """int64 [R]: the numbers that the sites of rows have in `keys`.

    New sites are numbered there, in the order in which they come.

    Args:
        table: a pyarrow.Table of a part, with the columns "site", "kind" and, if there are phases,
            "phase".
        rows: which of its rows, by default all.
    """
    codes = np.zeros(table.num_rows, np.int64)
    texts: list[list[str | None]] = []
    phased = (PHASE_COLUMN,) if PHASE_COLUMN in table.column_names else ()
    for column in ("site", *phased, "kind"):
        found = table.column(column).combine_chunks()
        texts.append([*found.dictionary.to_pylist(), None])
        indices = found.indices
        if indices.null_count:
            indices = indices.fill_null(len(texts[-1]) - 1)
        codes = codes * len(texts[-1]) + numbers(indices)
    codes, first, inverse = np.unique(codes[rows], return_index=True, return_inverse=True)
    number = np.empty(len(codes), np.int64)
    for i in np.argsort(first).tolist():
        number[i] = keys.setdefault(_key(int(codes[i]), texts), len(keys))
    return np.asarray(number[inverse])


def _key(code: int, texts: list[list[str | None]]) -> Key:
    """The key of a row, of which `code` has the numbers of its texts: name, phase, kind."""
    found = []
    for known in reversed(texts):
        code, place = divmod(code, len(known))
        found.append(known[place])
    kind, *phase, name = found
    return str(name), in_phase(phase[0] if phase else None, str(kind))
