"""png(): a small picture as a data URI, for pages that must not load anything."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def png(codes: NDArray[np.uint8], colours: NDArray[np.uint8]) -> str:
    """The picture whose pixel (y, x) has ``colours[codes[y, x]]``, as "data:image/png;base64,...".

    codes: uint8 [height, width]; colours: uint8 [n, 4] with n <= 256, red, green, blue, opacity.
    """
    height, width = codes.shape
    indexed, filter_none = 3, np.zeros((height, 1), np.uint8)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, indexed, 0, 0, 0)),
        (b"PLTE", colours[:, :3].tobytes()),
        (b"tRNS", colours[:, 3].tobytes()),
        (b"IDAT", zlib.compress(np.hstack((filter_none, codes)).tobytes(), 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
