"""Instruction, Kernel, kernels(): what cuobjdump says of an object of nvcc.

pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm, or the CUDA toolkit's own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PIPES = {
    "fma": ("FADD", "FFMA", "FMUL", "IMAD", "HFMA2", "HADD2", "HMUL2"),
    "fp64": ("DADD", "DFMA", "DMUL", "DSETP", "DMNMX"),
    "memory": (
        *("LDG", "LDS", "LDL", "LDC", "LD", "STG", "STS", "STL", "ST", "ATOM", "ATOMS", "ATOMG"),
        *("RED", "SHFL", "MUFU", "F2F", "F2I", "I2F", "F2FP", "BAR", "S2R", "CCTL", "MEMBAR"),
    ),
    "control": (
        *("BRA", "BSSY", "BSYNC", "CALL", "RET", "EXIT", "NOP", "WARPSYNC", "BRX", "BREAK"),
        *("YIELD", "JMP"),
    ),
    "uniform": ("R2UR", "S2UR", "LDCU"),
}
"""The mnemonics of each execution pipe; those that begin with U are uniform, the rest ALU's."""


class Instruction(NamedTuple):
    """One line of SASS."""

    address: int
    text: str

    @property
    def mnemonic(self) -> str:
        """Without predicate and modifiers: FFMA."""
        return re.sub(r"^@!?U?P\w+ ", "", self.text).split()[0].partition(".")[0]

    @property
    def pipe(self) -> str:
        for pipe, mnemonics in PIPES.items():
            if self.mnemonic in mnemonics:
                return pipe
        return "uniform" if self.mnemonic.startswith("U") else "alu"

    @property
    def target(self) -> int | None:
        """Where a branch goes."""
        found = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", self.text)
        return int(found[1], 16) if found else None

    @property
    def is_conditional(self) -> bool:
        """Whether a branch may not be taken; one for diverged warps is, unless they diverged."""
        return self.text.startswith("@") or bool(re.search(r"BRA\S* !?U?P\w+, ", self.text))

    @property
    def reads_vector(self) -> bool:
        """Whether it loads elements of the tensor, of a whole vector."""
        return bool(re.search(r"\bLDG\.E\.(128|64)\b", self.text)) and "CONSTANT" not in self.text

    @property
    def is_local(self) -> bool:
        """Whether it loads from local memory, or stores to it."""
        return self.mnemonic in ("LDL", "STL")

    @property
    def is_doubtful(self) -> bool:
        """Whether it is the least of x - c and y, for a known c: what ptxas 13.0 makes of
        min(c - x, y), as a GPU showed, in a copy of a function for which c is known. The kernels
        ask for no such minimum."""
        found = re.search(r"\bVIADDMNMX \w+, \w+(?:\.reuse)?, (0x[0-9a-f]+), R.*, PT", self.text)
        return found is not None and int(found[1], 16) >= 1 << 31

    @property
    def is_rare(self) -> bool:
        """Whether it is for what happens seldom: a call, an addition to memory.

        A call by a predicate is the end of a loop where it is taken, and nothing where it is not.
        """
        is_call = self.mnemonic == "CALL" and not self.text.startswith("@")
        return is_call or self.mnemonic in ("RED", "ATOMG", "ATOM")


class Kernel(NamedTuple):
    """One function, and what it takes of a multiprocessor."""

    name: str
    architecture: str
    instructions: list[Instruction]
    registers: int
    stack: int
    """Bytes of local memory: spills, and arrays that are indexed."""

    @property
    def agent(self) -> str:
        """What walks through the tensor; short rows are those of maps."""
        if "maps<" in self.name:
            return "short rows"
        return "runs" if "runs<" in self.name else "columns"

    @property
    def is_masked(self) -> bool:
        """Whether it leaves out the rows of a mask."""
        return "Masked<" in self.name

    @property
    def is_skewed(self) -> bool:
        """Whether it reads rows that do not begin where vectors do."""
        return "Skewed<" in self.name

    @property
    def dtype(self) -> str:
        for dtype, element in (("fp16", "Half"), ("bf16", "BFloat16"), ("fp32", "float")):
            if f"Vectors<hookstats::{element}>" in self.name or f"Vectors<{element}>" in self.name:
                return dtype
        return "any"

    @property
    def flags(self) -> list[str]:
        """The template arguments after the source: whether it counts, higher moments, tensors."""
        found = re.search(r">?, (true|false), (true|false), (\d+)>\(", self.name)
        return list(found.groups()) if found else []


def cuobjdump(*arguments: str | Path) -> str:
    """What cuobjdump says.

    Raises:
        FileNotFoundError: there is none.
    """
    lib = Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    wheels = lib / "site-packages" / "nvidia"
    folders = [*wheels.glob("cu*/bin"), Path("/usr/local/cuda/bin")]
    found = next((path for f in folders if (path := f / "cuobjdump").is_file()), None)
    command = str(found or shutil.which("cuobjdump") or "")
    if not command:
        raise FileNotFoundError(
            "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    beside = str(Path(command).parent)  # where nvdisasm is, too
    done = subprocess.run(
        [command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{beside}:/usr/bin:/bin"},
    )
    return done.stdout


def kernels(file: Path) -> Iterator[Kernel]:
    """The kernels in an object, for each architecture that it has code for."""
    architecture = name = ""
    resources: dict[tuple[str, str], tuple[int, int]] = {}
    for line in cuobjdump("-res-usage", file).splitlines():
        if found := re.search(r"(?:arch = |code for )(sm_\w+)", line):
            architecture = found[1]
        elif found := re.search(r"Function (\w+):", line):
            name = found[1]
        elif found := re.search(r"REG:(\d+) STACK:(\d+)", line):
            resources[architecture, name] = int(found[1]), int(found[2])
    bodies: dict[tuple[str, str], list[Instruction]] = {}
    body: list[Instruction] = []
    for line in cuobjdump("-sass", file).splitlines():
        if found := re.search(r"(?:arch = |code for )(sm_\w+)", line):
            architecture = found[1]
        elif found := re.search(r"Function : (\w+)", line):
            body = bodies.setdefault((architecture, found[1]), [])
        elif found := re.match(r"\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);", line):
            body.append(Instruction(int(found[1], 16), found[2].strip()))
    plain = demangled(name for _, name in bodies)
    for (architecture, name), instructions in bodies.items():
        of_cubin = resources.get(("", name), (0, 0))  # which says for what it is but once
        registers, stack = resources.get((architecture, name), of_cubin)
        yield Kernel(plain[name], architecture, instructions, registers, stack)


def demangled(names: Iterable[str]) -> dict[str, str]:
    """By mangled name, the name as C++ has it."""
    every = list(dict.fromkeys(names))
    done = subprocess.run(
        ["c++filt"], input="\n".join(every), capture_output=True, text=True, check=True
    )
    return dict(zip(every, done.stdout.splitlines(), strict=True))
