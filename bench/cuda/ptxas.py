"""python -m bench.cuda.ptxas FILE...: whether ptxas compiled the CUDA kernels well, without a GPU.

FILE: objects of nvcc. Each kernel may take so many registers and so much local memory, where spills
are, and has no minimum that ptxas gets wrong. Exit code: 1 where one has more.

Needs cuobjdump: the CUDA toolkit's, or `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REGISTERS = 128
"""Of a thread: with more, a multiprocessor holds no two blocks of 256."""
STACK = 600
"""Bytes of local memory of a thread. Loops that read the tensor use none of it: what is rarely
needed is there, and more means that something else has been spilled."""

WRONG_MINIMUM = re.compile(r"\bVIADDMNMX \w+, \w+(?:\.reuse)?, (0x[0-9a-f]+), R.*, PT")
"""The least of x - c and y, for a known c, which is what ptxas 13.0 makes of min(c - x, y): a GPU
showed it, in a copy of a function for which c is known. The kernels ask for no such minimum."""


def cuobjdump(option: str, file: Path) -> str:
    """What cuobjdump says of an object.

    Raises:
        FileNotFoundError: there is none.
    """
    lib = Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    folders = [*lib.glob("site-packages/nvidia/cu*/bin"), Path("/usr/local/cuda/bin")]
    found = next((path for f in folders if (path := f / "cuobjdump").is_file()), None)
    command = str(found or shutil.which("cuobjdump") or "")
    if not command:
        raise FileNotFoundError(
            "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    beside = {"PATH": f"{Path(command).parent}:/usr/bin:/bin"}  # where nvdisasm is, too
    done = subprocess.run(
        [command, option, str(file)], capture_output=True, text=True, check=True, env=beside
    )
    return done.stdout


def resources(said: str) -> Iterator[tuple[str, int, int]]:
    """Architecture and name of each kernel, its registers, and its bytes of local memory."""
    architecture = name = ""
    for line in said.splitlines():
        if found := re.search(r"(?:arch = |code for )(sm_\w+)", line):
            architecture = found[1]
        elif found := re.search(r"Function (\w+):", line):
            name = f"{architecture} {found[1]}"
        elif found := re.search(r"REG:(\d+) STACK:(\d+)", line):
            yield name, int(found[1]), int(found[2])


def problems(used: str, code: str) -> Iterator[str]:
    """What is wrong, by what cuobjdump says with -res-usage and with -sass."""
    for name, registers, stack in resources(used):
        if registers > REGISTERS:
            yield f"{name}: {registers} registers; expected at most {REGISTERS}"
        if stack > STACK:
            yield f"{name}: {stack} bytes of local memory; expected at most {STACK}"
    name = ""
    for line in code.splitlines():
        if found := re.search(r"Function : (\w+)", line):
            name = found[1]
        elif (found := WRONG_MINIMUM.search(line)) and int(found[1], 16) >= 1 << 31:
            yield f"{name}: {line.strip()}: a minimum that ptxas 13.0 gets wrong"


def main() -> int:
    """Check each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    found, kernels = [], 0
    for file in parser.parse_args().files:
        used = cuobjdump("-res-usage", file)
        kernels += used.count("STACK:")
        found += problems(used, cuobjdump("-sass", file))
    print(*found, f"ptxas: {kernels} kernels, {len(found)} problems", sep="\n")
    return int(bool(found) or not kernels)


if __name__ == "__main__":
    raise SystemExit(main())
