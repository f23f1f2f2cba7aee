"""Pages: memory straight from the operating system, apart from the heap of the training's tensors.

What stays in that heap lies between tensors that come and go with each step. These find less room
that is whole then, more of them go to the heap's end, and malloc gives what is free there back to
the operating system, which has to empty each page of it again in the next step.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np
from numpy.typing import NDArray

_LEAST_BYTES = 1 << 16
"""What is smaller comes from the heap: it fits between other things."""


def zeros(words: int) -> NDArray[np.int64]:
    """int64 [words] of zeros. Pages take memory once they are written.

    Raises:
        MemoryError: there is no room.
    """
    if 8 * words < _LEAST_BYTES:
        return np.zeros(words, np.int64)
    try:
        if sys.platform == "win32":
            memory = mmap.mmap(-1, 8 * words)
        else:  # processes that are forked have a copy, as of all memory
            memory = mmap.mmap(-1, 8 * words, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{8 * words} bytes: {error}") from error
    return np.frombuffer(memory, np.int64)
