"""What a thousand steps leave behind, and what thirty call and allocate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from support.everything import Training
from support.paths import python_path
from torch.utils._python_dispatch import TorchDispatchMode

from hookstats.hooks.step_sample import StepSample
from hookstats.watching.settings import KINDS

pytestmark = pytest.mark.usefixtures("hooks_in", "one_thread")


@pytest.mark.check
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is resident")
@pytest.mark.parametrize("backward", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_thousand_steps_leave_nothing_behind(backward: bool, hooks_in: str) -> None:
    # In a process of its own: other tests' memory is given back whenever it pleases.
    done = subprocess.run(
        [sys.executable, "-c", f"from support.everything import growth; growth({backward})"],
        env={**os.environ, "HOOKSTATS_HOOKS": hooks_in, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tensors, blocks, resident = zip(*json.loads(done.stdout), strict=True)
    # A record more or less may just be on its way to the disk.
    assert tensors[-1] <= max(tensors[1:4])
    # One object a step would be 300 more; caches of Python's fill up in the first hundreds.
    assert blocks[-1] - blocks[-4] < 200
    # The smallest activation kept would be 2 KiB per step, so 1.2 MiB in these 600 steps; memory is
    # flat from step 400 on, after one page or two of the allocator's came in the first hundreds.
    assert resident[-1] - resident[3] < 1 << 20


class Counting(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


STEPS = 30

FREE_KINDS = tuple(kind for kind in KINDS if kind not in ("update", "checksum"))
"""An update takes a copy of its parameter, as `watch` says, and checksums are sums by torch."""

FREE = {"aten.detach.default", "aten.as_strided.default"}
"""Besides its own, hookstats calls these operators, which allocate nothing and wait for nothing."""


DRAINED = FREE | {f"aten.{name}" for name in ("copy_.default", "lift_fresh.default")}
DRAINED |= {"aten.select.int", "aten.slice.Tensor", "hookstats.drain_.default"}
"""And these, as a step is closed on the host: they wait for nothing, either."""

OF_SAMPLE = "cat stack view mul div sub dot linalg_vector_norm split_with_sizes _to_copy"
DRAINED |= {f"aten.{name}.{of}" for name in OF_SAMPLE.split() for of in ("default", "Tensor")}
DRAINED |= {"aten._foreach_norm.Scalar", "aten._local_scalar_dense.default"}
"""And these, for the sample of the weights: they are on the host, too."""


def test_steps_call_no_operator_that_waits() -> None:
    def calls(watched: bool) -> Counter[str]:
        training = Training(watched=watched, kinds=FREE_KINDS)
        training.step()
        with Counting() as mode:
            for _ in range(STEPS):
                training.settle()
                training.step()
        training.close()
        return mode.calls

    plain = calls(watched=False)
    assert plain["aten.addmm.default"] >= STEPS
    more = calls(watched=True) - plain
    assert {name for name in more if not name.startswith("hookstats.update")} <= DRAINED


# Of torch 2.11's profiler, about itself.
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle:UserWarning")
def test_hooks_allocate_nothing_and_a_close_ten_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the kernels, whose memory no dispatch mode sees; the sample of the weights does."""
    monkeypatch.setattr(StepSample, "before", lambda *_: None)

    def allocations(watched: bool) -> Counter[int]:
        training = Training(watched=watched, kinds=FREE_KINDS)
        training.step()
        cpu = torch.profiler.ProfilerActivity.CPU
        with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
            for _ in range(STEPS):
                training.settle()
                training.step()
        training.close()
        results = profile.profiler.kineto_results  # type: ignore[union-attr]
        sizes = [event.nbytes() for event in results.events() if event.name() == "[memory]"]
        return Counter(size for size in sizes if size > 0)

    plain = allocations(watched=False)
    assert sum(plain.values()) > STEPS
    assert (allocations(watched=True) - plain).total() <= STEPS * 10
