"""train(): the training run of the demo: a small network on scikit-learn's digits, fully watched.

One layer is initialised badly on purpose, so that there is a fault to find.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import hookstats
from hookstats.show.grid import require_rich

BATCH = 64
BAD_LAYER = "block2.conv"


class Block(nn.Sequential):
    """A convolution, batch norm if `norm`, and ReLU."""

    def __init__(self, channels_in: int, channels_out: int, norm: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=not norm)
        if norm:
            self.norm = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU()


class DigitsNet(nn.Module):
    """Three convolution blocks and a linear head for 8 x 8 images of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = Block(1, 16)
        self.block2 = Block(16, 32, norm=False)
        self.block3 = Block(32, 32)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(32 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, 10] of images [batch, 1, 8, 8]."""
        x = self.block3(self.block2(self.block1(images)))
        logits: Tensor = self.head(self.pool(x).flatten(1))
        return logits


def plant_fault(model: DigitsNet) -> None:
    """Give most channels of one convolution a bias so low that their ReLUs never open."""
    conv = model.get_submodule(BAD_LAYER)
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    with torch.no_grad():
        conv.bias[: conv.out_channels * 3 // 4] = -20.0


def load_digits() -> tuple[Tensor, Tensor]:
    """The 1797 images, float32 [n, 1, 8, 8] in 0..1, and their labels, int64 [n]."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            f"the demo needs scikit-learn ({error}): pip install 'hookstats[demo]'"
        ) from error
    images, labels = datasets.load_digits(return_X_y=True)
    return (
        torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16.0,
        torch.tensor(labels),
    )


def train(out: Path, epochs: int, seed: int = 0) -> float:
    """Train with every layer watched, and record into `out`; returns the held-out accuracy.

    Raises:
        ImportError: scikit-learn, rich or pyarrow is not installed.
        OSError: `out` cannot be written, or holds another run.
    """
    require_rich()
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    torch.manual_seed(seed)
    torch.set_num_threads(1)  # layers this small take longer on many threads
    images, labels = load_digits()
    order = torch.randperm(len(images))
    held_out, training = order[:300], order[300:]
    model = DigitsNet()
    plant_fault(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        TextColumn("epoch {task.fields[epoch]}/" + str(epochs)),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    steps = epochs * -(-len(training) // BATCH)
    with progress, hookstats.watch(model, optimizer, out=out) as watch:
        bar = progress.add_task("", total=steps, epoch=0, loss=float("nan"))
        for epoch in range(1, epochs + 1):
            for batch in torch.split(training[torch.randperm(len(training))], BATCH):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                watch.log(loss=loss)
                progress.update(bar, advance=1, epoch=epoch, loss=loss.item())
    model.eval()
    with torch.no_grad():
        right = model(images[held_out]).argmax(1) == labels[held_out]
    return float(right.float().mean())
