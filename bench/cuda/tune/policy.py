"""Policy: the numbers of csrc/cuda/policy.h that are tuned, their values that are tried, and the
header that holds them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
TUNED = ROOT / "csrc" / "cuda" / "tuned.h"


class Compiled(NamedTuple):
    """What is compiled into the kernels of one agent."""

    agent: str
    """"runs" or "columns"."""
    block: int
    in_flight: int
    blocks: int
    """That a multiprocessor holds at a time."""


class Code(NamedTuple):
    """The numbers that are compiled into kernels."""

    block: int
    in_flight: int
    runs_blocks: int
    columns_blocks: int

    def of(self, agent: str) -> Compiled:
        """What of these the kernels of an agent have."""
        blocks = self.runs_blocks if agent == "runs" else self.columns_blocks
        return Compiled(agent, self.block, self.in_flight, blocks)

    def __str__(self) -> str:
        return "-".join(map(str, self))


class Plan(NamedTuple):
    """The numbers of plans."""

    pieces: int
    channel_pieces: int
    least_tiles: int
    warp_slots: int
    warp_tiles: int
    filling_warps: int
    column_pieces: int
    column_roots: int
    column_bytes: int
    least_columns: int
    least_rows: int
    copies: int
    most_copy_bytes: int
    histogram_blocks: int


class Policy(NamedTuple):
    """All of them."""

    code: Code
    plan: Plan


AXES: dict[str, tuple[int, ...]] = {
    "column_pieces": (1, 2, 3, 4, 6, 8),
    "column_roots": (1, 2, 4, 8),
    "column_bytes": (128, 256, 512, 1024),
    "pieces": (4, 8, 16, 32),
    "channel_pieces": (2, 3, 4, 6, 8, 12, 16),
    "warp_tiles": (1, 2, 4, 8, 16),
    "copies": (1, 4, 32),
    "most_copy_bytes": (8192, 16384, 32768, 49152),
    "histogram_blocks": (2, 3, 4, 6, 8, 16),
    "least_rows": (8, 16, 32, 64, 128),
    "least_columns": (16, 32, 64),
    "least_tiles": (1, 2, 4, 8),
    "warp_slots": (128, 256, 512, 1024),
    "filling_warps": (2, 4, 8, 16),
}
"""The values of plans' numbers, in the order in which they are tried."""


THREADS = ((768, 512), (512, 768), (1024, 1024), (512, 256), (512, 512))
"""Threads of a multiprocessor, in runs and in columns: each has 64 to 255 registers then."""


def codes() -> list[Code]:
    """Those that are compiled: each has kernels of one agent that no other has."""
    found: list[Code] = []
    for block, in_flight in product((128, 256, 512), (2, 4, 8)):
        beside: list[Code] = []
        for runs, columns in THREADS:
            code = Code(block, in_flight, runs // block, columns // block)
            known = {agent: {each.of(agent) for each in beside} for agent in ("runs", "columns")}
            is_new = any(code.of(agent) not in known[agent] for agent in known)
            if runs % block == columns % block == 0 and is_new:
                beside.append(code)
        found += beside
    return found


def constant(name: str) -> str:
    """What the header calls a number: pieces is kPieces."""
    return "k" + "".join(part.capitalize() for part in name.split("_"))


def read(path: Path = TUNED) -> Policy:
    """The numbers of a header.

    Raises:
        ValueError: it lacks one.
    """
    found = dict(re.findall(r"^constexpr int (k\w+) = (\d+);$", path.read_text(), re.MULTILINE))
    names = [constant(name) for name in (*Code._fields, *Plan._fields)]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} has no {', '.join(missing)}; expected a header of this tuner's")
    numbers = [int(found[name]) for name in names]
    return Policy(Code(*numbers[: len(Code._fields)]), Plan(*numbers[len(Code._fields) :]))


def header(policy: Policy, provenance: Sequence[str]) -> str:
    """The header that the build includes; `provenance` says where its numbers are from."""

    def constants(numbers: Code | Plan) -> str:
        each = numbers._asdict().items()
        return "".join(f"constexpr int {constant(name)} = {value};\n" for name, value in each)

    said = "\n".join(
        textwrap.fill(
            line, 100, initial_indent="// ", subsequent_indent="// ", break_on_hyphens=False
        )
        for line in provenance
    )
    return f"""\
// The numbers of policy.h, which says what each of them is: written by `python -m bench.cuda.tune`.
//
{said}
#pragma once

namespace hookstats::cuda::tuned {{

// Of compiled kernels.
{constants(policy.code)}
// Of plans.
{constants(policy.plan)}
}}  // namespace hookstats::cuda::tuned
"""
