"""What all benchmarks share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.machine import machine
from bench.measure import replayed_perf_counter


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random tensors in every run."""
    torch.manual_seed(0)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """What a time depends on besides the code, of ours."""
    machine_info["measured_on"] = machine()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have every benchmark report the times that `bench.measure` took of all peers in turn."""
    for item in items:
        item.add_marker(pytest.mark.benchmark(timer=replayed_perf_counter))
