"""What the kernels prefetch to write is in the library: GCC drops calls that only prefetch."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hookstats

SETS = ("avx2", "avx512")
OBJDUMP = shutil.which("objdump")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are x86-64's"),
    pytest.mark.skipif(OBJDUMP is None, reason="needs objdump"),
]


@pytest.fixture(scope="module")
def functions() -> dict[str, int]:
    """By function of the library, how many instructions prefetch memory to write to it."""
    (library,) = Path(hookstats.__file__).parent.glob("_C*.so")
    command = [str(OBJDUMP), "-dC", "--no-show-raw-insn", str(library)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts: dict[str, int] = {}
    name = ""
    for line in listing.splitlines():
        if begins := re.fullmatch(r"[0-9a-f]+ <(.*)>:", line):
            name = begins[1]
            counts.setdefault(name, 0)
        elif "\tprefetchw" in line:
            counts[name] += 1
    if not any("hookstats::cpu::" in name for name in counts):
        pytest.skip("the library has no names of functions: it is stripped")
    return counts


@pytest.mark.parametrize("instructions", SETS)
def test_counters_are_emptied_into_lines_that_were_asked_for(
    functions: dict[str, int], instructions: str
) -> None:
    assert functions[f"hookstats::cpu::{instructions}::Histogram::empty()"] > 0


def test_histograms_are_taken_out_of_lines_that_were_asked_for(functions: dict[str, int]) -> None:
    taking = [n for name, n in functions.items() if "hookstats::cpu::drain_counts" in name]
    assert sum(taking) > 0
