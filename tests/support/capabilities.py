"""What processors can do, as torch calls it: the same numbers by each instruction set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from support.paths import python_path

CAPABILITIES = ["DEFAULT", "AVX2", "AVX512"]


def compare_capabilities(digest: Callable[[], str]) -> None:
    """Assert that a function of the tests' supports returns the same by each instruction set that
    this processor has."""
    here = torch.backends.cpu.get_cpu_capability()
    if here not in CAPABILITIES:
        pytest.skip(f"this processor has {here}")
    code = f"from {digest.__module__} import {digest.__name__} as digest; print(digest())"
    expected = digest()
    for capability in CAPABILITIES[: CAPABILITIES.index(here)]:
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONPATH": python_path(),
                "ATEN_CPU_CAPABILITY": capability.lower(),
            },
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == expected, capability
