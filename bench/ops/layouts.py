"""LAYOUTS, DTYPES: the tensors that update_ is timed on."""

from __future__ import annotations

import torch
from sample import Layout

from bench.smoke import pick

LAYOUTS = pick(
    {
        "NCHW 32x64x56x56": Layout((32, 64, 56, 56), axis=1),
        "channels_last 32x64x56x56": Layout((32, 56, 56, 64), axis=3, order=(0, 3, 1, 2)),
        "(N, L, C) 16x512x768": Layout((16, 512, 768), axis=2),
        "rows 4096x1024": Layout((4096, 1024), axis=0),
        "whole tensor 2^23": Layout((2**23,), axis=None),
    },
    {
        "NCHW": Layout((2, 4, 8, 8), axis=1),
        "channels_last": Layout((2, 8, 8, 4), axis=3, order=(0, 3, 1, 2)),
        "(N, L, C)": Layout((2, 16, 16), axis=2),
        "rows": Layout((16, 32), axis=0),
        "whole tensor": Layout((1024,), axis=None),
    },
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SAMPLES = {
    f"{layout} {dtype}": (LAYOUTS[layout], DTYPES[dtype]) for layout in LAYOUTS for dtype in DTYPES
}
COMPILED = pick(tuple(SAMPLES), ("NCHW fp32",))
"""Those that torch.compile and eager torch are timed on: all, but where they only have to run."""
