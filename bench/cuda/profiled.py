"""python -m bench.cuda.profiled: a few launches of each main case, to be run under Nsight Compute.

Nothing is timed or checked here.
"""

from __future__ import annotations

from math import prod

import torch

from bench.cuda.cases import WHATS, layouts, values
from bench.cuda.peers import Sample, Update

GPU = torch.device("cuda", 0)
ELEMENTS = 1 << 26
NAMES = (
    "whole tensor",
    "(N, L, 64)",
    "(N, L, 1024)",
    "(N, L, 16384)",
    "(N, L, 50257)",
    "(N, 256, H, W)",
    "(N, 512, 7, 7)",
    "rows of 1024",
    "rows of 4096",
)


def main(device: torch.device = GPU, elements: int = ELEMENTS) -> None:
    """Run them."""
    calls = 0
    for dtype in (torch.float32, torch.bfloat16):
        for layout in layouts(elements):
            if layout.name not in NAMES:
                continue
            flat = values("normal", prod(layout.shape), dtype, device)
            sample = Sample(layout, flat, 2)
            for asked, what in WHATS.items():
                update = Update(sample, what)
                for _ in range(2):  # the first finds nothing in any cache but itself
                    update.prepare()
                    update.run()
                    calls += 1
                print(f"bench.cuda.profiled: {layout.name} {dtype}, {asked}", flush=True)
    print(f"bench.cuda.profiled: {calls} calls")


if __name__ == "__main__":
    main()
