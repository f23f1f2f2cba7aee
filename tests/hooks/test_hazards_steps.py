"""What a thousand steps leave behind, and what a hundred call and allocate."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support.expected import assert_adds_up
from support.modules import Lambda
from support.paths import python_path
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import hookstats as hs
from hookstats.watching.settings import KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


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

    def __init__(self, *, watched: bool, backward: bool = True) -> None:
        torch.manual_seed(0)
        self.model, shape = everything()
        self.optimizer = SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        bins = hs.LinearBins(8, -1, 1)
        self.watch = (
            hs.watch(self.model, self.optimizer, KINDS, bins=bins, channel_bins=bins)
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
    training = Training(watched=True, backward=backward)
    assert training.watch is not None
    seen = []
    for i in range(1, 1001):
        training.step()
        if i % 100 == 0:
            assert training.watch.latest.step == i - 1  # nothing is in the queue
            gc.collect()
            tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
            seen.append((tensors, sys.getallocatedblocks(), resident_bytes()))
    training.close()
    print(json.dumps(seen))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is resident")
@pytest.mark.parametrize("backward", [True, False])
def test_a_thousand_steps_leave_nothing_behind(backward: bool, hooks_in: str) -> None:
    # In a process of its own: other tests' memory is given back whenever it pleases.
    done = subprocess.run(
        [sys.executable, "-c", f"import test_hazards_steps; test_hazards_steps.growth({backward})"],
        cwd=Path(__file__).parent,
        env={**os.environ, "HOOKSTATS_HOOKS": hooks_in, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tensors, blocks, resident = zip(*json.loads(done.stdout), strict=True)
    assert tensors[1:] == tensors[1:2] * 9
    # One object a step would be 300 more; caches of Python's fill up in the first hundreds.
    assert blocks[-1] - blocks[-4] < 200
    # The smallest activation kept would be 2 KiB a step, the state of a site more.
    assert resident[-1] - resident[1] < 1 << 20


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


FREE = {"aten.detach.default", "aten.as_strided.default"}
"""Besides its own, hookstats calls these operators, which allocate nothing and wait for nothing."""


def test_a_hundred_steps_call_no_operator_that_allocates_or_waits() -> None:
    def calls(watched: bool) -> Counter[str]:
        training = Training(watched=watched)
        training.step()
        with Counting() as mode:
            for _ in range(100):
                training.step()
        training.close()
        return mode.calls

    plain = calls(watched=False)
    assert plain["aten.addmm.default"] >= 100
    more = calls(watched=True) - plain
    assert {name for name in more if not name.startswith("hookstats.")} <= FREE


def test_a_hundred_steps_allocate_nothing() -> None:
    """Nor do the kernels, whose memory no dispatch mode sees."""

    def allocations(watched: bool) -> Counter[int]:
        training = Training(watched=watched)
        training.step()
        cpu = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
            for _ in range(100):
                training.step()
        training.close()
        results = profile.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
        return Counter(size for size in sizes if size > 0)

    plain = allocations(watched=False)
    assert sum(plain.values()) > 100
    assert allocations(watched=True) - plain == Counter()
