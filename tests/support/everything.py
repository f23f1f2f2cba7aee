"""A model with all that is hard for hooks, and what a training run of it leaves behind."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from support.expected import assert_adds_up
from support.modules import Lambda
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils import checkpoint

import hookstats as hs
from hookstats.rules import history
from hookstats.watching.settings import KINDS


@dataclass
class Output:
    logits: Tensor
    aux: list[Tensor]


def everything() -> tuple[nn.Module, tuple[int, ...]]:
    """Views changed in place, checkpoints, containers, keyword arguments, recurrence."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)
            self.flat = nn.Flatten()
            self.relu = nn.ReLU(inplace=True)
            self.block = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
            self.lstm = nn.LSTM(64, 8, batch_first=True)
            self.head = Lambda(lambda x, *, mask: Output(x * mask, [x.mean(), x.sum()]))

        def forward(self, x: Tensor) -> Tensor:
            y = self.flat(self.fc(x))
            y += 1
            y = self.relu(y)
            y = checkpoint.checkpoint(self.block, y, use_reentrant=False)
            z, _ = self.lstm(y[:, None])
            out = self.head(z, mask=z.detach() > 0)
            loss: Tensor = out.logits.sum() + out.aux[0]
            return loss

    return Model(), (8, 4, 16)


class Training:
    """Steps of `everything`."""

    def __init__(
        self, *, watched: bool, backward: bool = True, kinds: Sequence[str] = KINDS
    ) -> None:
        torch.manual_seed(0)
        self.model, shape = everything()
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        bins = hs.LinearBins(8, -1, 1)
        self.watch = (
            hs.watch(self.model, self.optimizer, kinds=kinds, bins=bins, channel_bins=bins, every=1)
            if watched
            else None
        )
        self.x = torch.randn(shape)
        self.backward = backward

    def step(self) -> None:
        loss = self.model(self.x)
        if self.backward:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        elif self.watch is not None:
            self.watch.step()

    def settle(self) -> None:
        """Wait until all steps are recorded."""
        if self.watch is not None:
            self.watch._recorder.drain(disk=False)

    def close(self) -> None:
        if self.watch is not None:
            assert_adds_up(self.watch)
            assert self.watch.latest.step > 0
            self.watch.close()


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def growth(backward: bool) -> None:
    """Print, after each 100 of 1,000 steps, how much there is of what a step may leave behind."""
    torch.set_num_threads(1)
    history.SCALARS = 20  # what rules keep of numbers is full soon
    training = Training(watched=True, backward=backward)
    assert training.watch is not None
    seen = []
    for i in range(1, 1001):
        training.step()
        training.settle()  # what waits for a busy thread is not left behind
        if i % 100 == 0:
            assert training.watch.latest.step == i - 1  # nothing is in the queue
            gc.collect()
            tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            seen.append((tensors, sys.getallocatedblocks(), resident_bytes()))
    training.close()
    print(json.dumps(seen))
