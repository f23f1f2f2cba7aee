"""python -m bench.cuda.sass FILE...: what the compiled CUDA kernels cost an element, without a GPU.

FILE: objects or cubins of nvcc. In each kernel the loop that reads the tensor is found, and the
shortest way through that loop which does all of its loads, sums and counts: finite data, whole
vectors. `--check` compares with the ceilings in ceilings.json, and looks for what ptxas gets wrong;
`--store` writes the ceilings anew; `--write` puts the table into docs/cuda.md, and what follows
from it for an H200.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.cuda.page import INSTRUCTIONS, PAGE, PREDICTED, filled
from bench.cuda.sass import predicted
from bench.cuda.sass.flow import costs
from bench.cuda.sass.listing import Kernel, kernels

CEILINGS = Path(__file__).with_name("ceilings.json")
SLACK = 1.02
"""Of a ceiling: another patch release of nvcc schedules a little differently."""


class Row(NamedTuple):
    """A line of the table."""

    kernel: str
    architecture: str
    what: str
    instructions: float
    alu: float
    registers: int
    stack: int
    local: float

    @property
    def key(self) -> str:
        """What a ceiling is stored under."""
        return f"{self.architecture} {self.kernel} {self.what}"

    @property
    def is_hopper(self) -> bool:
        return self.architecture == "sm_90"

    @property
    def share(self) -> float:
        """Of an H200's memory bandwidth, what instructions leave at most: 18.6 bytes a clock and
        multiprocessor, which issues 128 instructions of threads, 64 of them to the ALU."""
        size = 4 if self.kernel.endswith("fp32") else 2
        elements = min(128 / self.instructions, 64 / max(self.alu, 1e-9))
        return min(1.0, elements * size / 18.6)


def rows(every: Iterable[Kernel]) -> list[Row]:
    """Of every kernel of one tensor that reads vectors, without higher moments."""
    found = []
    for kernel in every:
        if kernel.dtype == "any" or kernel.flags[1:] != ["false", "1"]:
            continue
        for what, cost in costs(kernel).items():
            found.append(
                Row(
                    f"{'masked ' * kernel.is_masked}{'skewed ' * kernel.is_skewed}"
                    f"{kernel.agent} {kernel.dtype}",
                    kernel.architecture,
                    what,
                    cost.instructions,
                    cost.by_pipe.get("alu", 0.0),
                    kernel.registers,
                    kernel.stack,
                    cost.local,
                )
            )
    return sorted(found, key=lambda row: (row.architecture, row.kernel))


def table(found: Sequence[Row]) -> str:
    """As Markdown, with the architectures side by side."""
    architectures = sorted({row.architecture for row in found}, key=lambda each: int(each[3:]))
    names = [*architectures, "registers", "local memory, bytes", "its loads and stores"]
    names.append("of an H200's bandwidth, at most")
    text = f"| kernel | what | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}\n"
    by_case: dict[tuple[str, str], dict[str, Row]] = {}
    for row in found:
        by_case.setdefault((row.kernel, row.what), {})[row.architecture] = row
    for (kernel, what), rows in by_case.items():
        of_each = [rows.get(each) for each in architectures]
        cells = [f"{row.instructions:.1f} ({row.alu:.1f})" if row else "-" for row in of_each]
        for kept, form in (("registers", "d"), ("stack", "d"), ("local", ".2g")):
            numbers = [format(getattr(row, kept), form) if row else "-" for row in of_each]
            cells.append(" / ".join(numbers if len(set(numbers)) > 1 else numbers[:1]))
        hopper = rows.get("sm_90")
        cells.append(f"{hopper.share:.2f}" if hopper else "-")
        text += f"| {kernel} | {what} | {' | '.join(cells)} |\n"
    return text


def above(found: Sequence[Row], ceilings: dict[str, list[float]]) -> Iterator[str]:
    """What costs more than it is allowed to, or has no ceiling."""
    for row in found:
        if row.key not in ceilings:
            yield f"{row.key}: no ceiling is stored; run with --store"
            continue
        for name, value, most in zip(
            (
                *("instructions an element", "registers", "bytes of local memory"),
                "loads and stores of local memory an element",
            ),
            (row.instructions, row.registers, row.stack, row.local),
            ceilings[row.key],
            strict=True,
        ):
            if value > most * SLACK:
                yield f"{row.key}: {value:.4g} {name}; expected at most {most:.4g}"


def doubtful(every: Iterable[Kernel]) -> Iterator[str]:
    """Instructions that a compiler may have got wrong."""
    for kernel in every:
        for instruction in kernel.instructions:
            if instruction.is_doubtful:
                where = f"{kernel.architecture} {kernel.name}, {instruction.address:#x}"
                yield f"{where}: {instruction.text}: expected no such minimum; see Instruction"


def main(given: Sequence[str] | None = None) -> int:
    """Print the table, compare it, or keep it."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda.sass", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", help="an architecture, such as sm_90; by default all")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(given)
    if missing := [str(file) for file in options.files if not file.is_file()]:
        raise SystemExit(f"bench.cuda.sass: {', '.join(missing)}: no such file")
    every = [kernel for file in options.files for kernel in kernels(file)]
    every = [each for each in every if options.only in (None, each.architecture)]
    found = rows(every)
    if not found:
        raise SystemExit("bench.cuda.sass: no kernel reads vectors in any of the files")
    if options.store:
        kept = {
            row.key: [round(row.instructions, 2), row.registers, row.stack, round(row.local, 3)]
            for row in found
        }
        CEILINGS.write_text(json.dumps(kept, indent=1) + "\n")
    if options.write:
        shares = {(row.kernel, row.what): row.share for row in found if row.is_hopper}
        page = filled(PAGE.read_text(), INSTRUCTIONS, table(found))
        PAGE.write_text(filled(page, PREDICTED, predicted.table(shares)))
    problems: list[str] = []
    if options.check:
        problems += above(found, json.loads(CEILINGS.read_text()))
        problems += doubtful(every)
    for problem in problems:
        print(f"bench.cuda.sass: {problem}", file=sys.stderr)
    print(f"bench.cuda.sass: {len(found)} loops, {len(problems)} problems")
    if not options.check:
        print(table(found), end="")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
