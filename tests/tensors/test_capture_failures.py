"""capture: hooks that fail, calls that raise, hooks inside hooks, threads and replicas."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

import pytest
import torch
from support.expected import assert_adds_up
from support.modules import Lambda
from torch import Tensor, nn

import hookstats as hs
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.tensors.captured import CapturedCall


def test_what_cannot_be_kept_disables_the_module_alone() -> None:
    def knot(x: Tensor) -> list[Any]:
        values: list[Any] = [x * 2]
        values.append(values)
        return values

    model = nn.Sequential(nn.Tanh(), Lambda(knot), Lambda(lambda values: values[0]))
    with hs.capture(model, kinds=("output",)) as c:
        with pytest.warns(RuntimeWarning, match="no longer captures '1': RecursionError"):
            model(torch.ones(2))
        for _ in range(2):
            model(torch.ones(2))
    assert len(c["0", "output"]) == 3
    row = next(row for row in c.coverage() if row.name == "1")
    assert row.skipped["disabled"] == 2
    assert row.error is not None
    assert row.error.startswith("RecursionError")


def test_calls_that_raise_do_not_pile_up() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = Lambda(broken)
    with hs.capture(model, include="", kinds=("input", "output"), max_bytes=4) as c:
        for i in range(100):
            with suppress(ZeroDivisionError):
                model(torch.full((1,), float(i)))
        gc.collect()
        assert sum(type(one) is CapturedCall for one in gc.get_objects()) < 10
    assert c.dropped == 99


def test_modules_that_run_in_several_threads() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    failures: list[Exception] = []

    def run(i: int) -> None:
        try:
            for _ in range(25):
                x = torch.full((2, 8), float(i), requires_grad=True)
                (i * model(x)).sum().backward()
        except Exception as error:
            failures.append(error)

    with hs.capture(model, kinds=MODULE_KINDS) as c:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    calls = c.calls("0")
    assert sorted(call.index for call in calls) == list(range(100))
    expected = {i: model[0](torch.full((2, 8), float(i))).detach() for i in range(1, 5)}
    for call in calls:
        i = int(call.input[0, 0])
        torch.testing.assert_close(call.output, expected[i])
        slope = i * (1 - expected[i].tanh().square())
        torch.testing.assert_close(call.grad_output, slope, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            call.grad_input, slope @ model[0].weight.detach(), rtol=1e-5, atol=1e-6
        )
    assert_adds_up(c)


def test_replicas_of_data_parallel_are_calls_of_the_module() -> None:
    model = nn.Sequential(nn.Tanh())
    with hs.capture(model, kinds=("input", "output")) as c:
        replica = model[0]._replicate_for_data_parallel()  # it has the same hooks
        outputs = [replica(torch.ones(1)), model[0](torch.zeros(1))]
    assert list(map(float, c["0", "output"])) == list(map(float, outputs))
    assert list(map(float, c["0", "input"])) == [1, 0]
