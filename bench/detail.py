"""Memory, disk and time of `watch(detail=...)` on a large random model.

python -m bench.detail [off | channel | tensor] [--layers N] [--width N] [--steps N] [--every N]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from hookstats.watching.watch import watch


class Wide(nn.Module):
    """Layers side by side, each of 16 inputs: many channels, few weights."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """The mean of squares of all outputs."""
        return torch.stack([layer(x).square().mean() for layer in self.layers]).mean()


def main() -> None:
    """Train for some steps, and print what they took."""
    parser = argparse.ArgumentParser(prog="python -m bench.detail", description=__doc__)
    parser.add_argument("detail", choices=("off", "channel", "tensor"))
    parser.add_argument("--layers", type=int, default=128)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="channels_every")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Wide(options.layers, options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    channels, tensors = 4 * options.layers * options.width + 16, 4 * options.layers + 1
    with tempfile.TemporaryDirectory() as out:
        settings = {"detail": options.detail, "channels_every": options.every}
        recording = (
            nullcontext()
            if options.detail == "off"
            else watch(model, optimizer, out=out, **settings)
        )
        began = time.process_time()
        with recording as w:
            for _ in range(options.steps):
                optimizer.zero_grad()
                model(torch.randn(8, 16)).backward()
                optimizer.step()
                if w is not None:
                    assert w.latest.whole.count.numel() == tensors  # so that no step waits
        took = (time.process_time() - began) / options.steps
        disk = sum(path.stat().st_size for path in Path(out).rglob("parts/*"))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{options.detail}: {channels:,} channels in {tensors} tensors, {options.steps} steps: "
        f"{disk / options.steps / 1e6:.2f} MB on the disk and {took:.2f} s of CPU per step, "
        f"{most:.0f} MiB of memory at most"
    )


if __name__ == "__main__":
    main()
