"""capture: a uniform sample of calls, a bound on bytes, and the count of what they left out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import hookstats as hs
from hookstats.tensors.recorder import Limits, Recorder


def kept(calls: int | None, total: int, seed: int = 0, max_bytes: int | None = None) -> list[int]:
    """Which of `total` calls of 8 bytes each are kept."""
    recorder = Recorder(("output",), Limits(calls=calls, seed=seed, max_bytes=max_bytes))
    for _ in range(total):
        call = recorder.begin("")
        if call is not None:
            call.add("output", "", recorder.take(call, torch.ones(2)))
    return [call.index for call in recorder.kept()]


@pytest.mark.parametrize("total", [0, 3, 4, 5, 100])
def test_no_more_calls_are_kept_than_asked_for(total: int) -> None:
    indices = kept(4, total)
    assert len(indices) == min(total, 4)
    assert indices == sorted(set(indices))


def test_the_sample_is_uniform() -> None:
    total, size, runs = 12, 3, 3000
    counts = Counter(index for seed in range(runs) for index in kept(size, total, seed))
    # Binomial: 750 of 3000, with a standard deviation of 24.
    assert all(abs(counts[i] - runs * size / total) < 5 * 24 for i in range(total))


def test_the_sample_is_its_seeds() -> None:
    assert kept(4, 100, seed=1) == kept(4, 100, seed=1) != kept(4, 100, seed=2)


def test_modules_called_equally_often_keep_the_same_calls() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with hs.capture(model, calls=5) as c:
        for i in range(50):
            model(torch.full((1, 2), float(i))).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    indices = [call.index for call in c.calls("0")]
    assert indices == [call.index for call in c.calls("1")]
    assert max(indices) > 5
    assert c.dropped == 2 * 45
    for call, output in zip(c.calls("1"), c["0", "output"], strict=True):
        assert torch.equal(call.output, output.tanh())
        assert call.grad_output is not None
    rows = {(row.name, row.kind): row for row in c.coverage()}
    row = rows["1", "output"]
    assert (row.forwards, row.observed, row.skipped) == (50, 5, {"not sampled": 45})


def test_beyond_max_bytes_the_oldest_calls_are_dropped() -> None:
    assert kept(None, 10, max_bytes=24) == [7, 8, 9]
    assert kept(None, 10, max_bytes=31) == [7, 8, 9]
    assert kept(None, 10, max_bytes=7) == []


def test_of_a_sample_that_does_not_fit_the_newest_calls_are_kept() -> None:
    for seed in range(200):
        assert kept(3, 12, seed, max_bytes=16) == kept(3, 12, seed)[-2:]


def test_bytes_count_forward_and_backward_of_all_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    with hs.capture(model, max_bytes=100) as c:  # 32 bytes an output or gradient
        y = model(torch.ones(2, 4))
        assert c.nbytes == 96
        y.sum().backward()
        # For the gradient of "2" the oldest call went, for that of "1" its own call: the oldest.
        assert [call.name for call in c.calls()] == ["2"]
        assert c.nbytes == 64
    assert c.dropped == 2
    rows = {(row.name, row.kind): row for row in c.coverage()}
    assert rows["0", "output"].skipped == {"max_bytes": 1}
    assert rows["0", "grad_output"].skipped == {"max_bytes": 1}
    assert rows["2", "grad_output"].observed == 1
    assert c["0", "output"] == []


def test_a_call_that_is_too_large_is_dropped_alone() -> None:
    model = nn.Identity()
    with hs.capture(model, kinds=("output",), max_bytes=40) as c:
        for n in (4, 100, 5):
            model(torch.ones(n))
    assert [len(tensor) for tensor in c["", "output"]] == [4, 5]
    assert c.dropped == 1


def test_no_hook_waits_for_the_gradients_of_a_call_that_was_dropped() -> None:
    model = nn.Linear(2, 2)
    with hs.capture(model, max_bytes=12) as c:
        y = model(torch.ones(1, 2))
        z = model(torch.ones(1, 3, 2)[:, :2])
        assert y._backward_hooks
        assert not z._backward_hooks
    assert c.dropped == 1


def test_a_call_that_was_dropped_stays_readable_by_whoever_has_it() -> None:
    model = nn.Linear(2, 2)
    with hs.capture(model, max_bytes=16) as c:
        y = model(torch.ones(1, 2))
        (call,) = c.calls("")
        model(torch.zeros(1, 2))
        model(torch.zeros(1, 2))
        y.sum().backward()
    assert torch.equal(call.output, y)
    assert call.leaves("grad_output") == {"": "missing"}  # it came too late
    assert c.nbytes == 16
