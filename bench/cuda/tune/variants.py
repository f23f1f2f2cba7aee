"""build(): the tuner's programs, one for each choice of compiled numbers; needs nvcc and no GPU."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.cuda.tune.policy import ROOT, TUNED, Code, Policy, header, read

sys.path.insert(0, str(ROOT / "_build"))

import nvcc

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c++20", "-O3", "-Xptxas=-v", "-Xfatbin=-compress-all")
MOST = 24
"""Variants that are measured."""


class Usage(NamedTuple):
    """What the kernels of a variant take, as ptxas says."""

    registers: int
    """Of the kernel that has most."""
    spilled: int
    """Bytes stored to and loaded from local memory, of all kernels."""


class Variant(NamedTuple):
    """A program."""

    code: Code
    program: Path
    usage: Usage


def sources() -> str:
    """A hash of what is compiled: the programs and the kernels, but for the numbers of which each
    variant has its own."""
    files = [*(ROOT / "csrc" / "core").glob("*"), *(ROOT / "csrc" / "cuda").glob("*")]
    files += [file for file in HERE.glob("*") if file.suffix in (".cu", ".cuh", ".h")]
    digest = hashlib.sha256()
    for file in sorted(files):
        if file != TUNED:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def usage(said: str) -> Usage:
    """What ptxas said of the kernels that it compiled."""
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", said)]
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    return Usage(max(registers, default=0), sum(map(int, spilled)))


class Builder:
    """Compiles what has changed since, for one architecture, into a folder."""

    def __init__(self, folder: Path, capability: str, jobs: int) -> None:
        self.folder = folder / capability
        self._jobs = jobs
        self._target = nvcc.Target(capability, ptx=False)
        self._sources = sources()

    def missing(self, codes: Iterable[Code]) -> list[str]:
        """The programs that are not there, or were made of other sources."""
        names = ["micro", *map(str, codes)]
        return [name for name in names if not self._is_made(name)]

    def build(self, codes: Sequence[Code]) -> None:
        """Compiles what is missing.

        Raises:
            RuntimeError: there is no nvcc, or it failed.
        """
        missing = self.missing(codes)
        if not missing:
            return
        found = nvcc.find_nvcc()
        if found is None:
            raise RuntimeError("no nvcc: install the CUDA toolkit, or set CUDA_HOME to its folder")
        by_name = {str(code): code for code in codes}
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(lambda name: self._make(found.command, name, by_name.get(name)), missing))

    def variants(self, codes: Sequence[Code]) -> list[Variant]:
        """What is built of `codes`."""
        made = [code for code in codes if self._is_made(str(code))]
        return [Variant(code, self.program(str(code)), self._usage(str(code))) for code in made]

    def program(self, name: str) -> Path:
        """Where a program is, or would be."""
        return self.folder / name / "tune"

    def _usage(self, name: str) -> Usage:
        return Usage(*self._stamp(name)["usage"])

    def _stamp(self, name: str) -> dict[str, Any]:
        stamp = self.folder / name / "stamp.json"
        return json.loads(stamp.read_text()) if stamp.is_file() else {}

    def _is_made(self, name: str) -> bool:
        stamp = self._stamp(name)
        made_of = [self._sources, *FLAGS, *self._target.flags()]
        return self.program(name).is_file() and stamp.get("made_of") == made_of

    def _make(self, command: str, name: str, code: Code | None) -> None:
        program = self.program(name)
        program.parent.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{ROOT / 'csrc'}", f"-I{HERE}"]
        if code is not None:
            tuned = program.with_name("tuned.h")
            tuned.write_text(header(Policy(code, read().plan), ["A variant that the tuner tries."]))
            includes.append(f'-DHOOKSTATS_TUNED="{tuned}"')
        source = HERE / ("micro.cu" if code is None else "tune.cu")
        line = ["nice", command, *FLAGS, *self._target.flags(), *includes]
        done = subprocess.run(
            [*line, str(source), "-o", str(program)], capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        program.with_name("nvcc.log").write_text(said)
        if done.returncode != 0:
            errors = [each for each in said.splitlines() if "error" in each] or ["silently"]
            raise RuntimeError(f"nvcc failed on {source.name} of {name}: {errors[0]}")
        subprocess.run(["strip", str(program)], check=False)  # a third of its size
        stamp = {
            "made_of": [self._sources, *FLAGS, *self._target.flags()],
            "usage": usage(said),
        }
        program.with_name("stamp.json").write_text(json.dumps(stamp) + "\n")


def worth_measuring(variants: Sequence[Variant], default: Code) -> list[Variant]:
    """The default, and those that spill least, at most `MOST` in all: what is in local memory is
    loaded and stored beside the tensor."""
    others = sorted(
        (each for each in variants if each.code != default), key=lambda v: v.usage.spilled
    )
    kept = [each for each in variants if each.code == default] + others[: MOST - 1]
    return [each for each in variants if each in kept]
