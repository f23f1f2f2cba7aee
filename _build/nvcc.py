"""nvcc: where it is, for which architectures it compiles, and its objects of csrc/cuda.

torch's own extension builder refuses nvcc where torch is built without CUDA. The CUDA sources need
no torch, so nvcc is called here, and the builder links what comes of it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

from overheard import first_error

DEFAULT_ARCHITECTURES = ("8.0", "9.0", "10.0")
"""A100; H100 and H200; B200. PTX of the last that nvcc knows serves later devices."""


class Nvcc(NamedTuple):
    """An nvcc that was found."""

    command: str
    home: Path
    """The toolkit's folder, with `include` and `lib64`."""
    version: str


class Target(NamedTuple):
    """A compute capability, such as "9.0" or "9.0a", to compile for."""

    capability: str
    ptx: bool
    """Whether PTX is kept as well, which later devices' drivers compile."""

    @property
    def number(self) -> str:
        return self.capability.replace(".", "")

    def flags(self) -> list[str]:
        """The option of nvcc for this target."""
        flags = [f"-gencode=arch=compute_{self.number},code=sm_{self.number}"]
        if self.ptx:
            flags.append(f"-gencode=arch=compute_{self.number},code=compute_{self.number}")
        return flags

    def __str__(self) -> str:
        return f"sm_{self.number}" + "+PTX" * self.ptx


def is_forced() -> bool:
    """Whether FORCE_CUDA asks for the kernels whatever torch has."""
    return os.environ.get("FORCE_CUDA", "0") not in ("", "0")


def find_nvcc() -> Nvcc | None:
    """The nvcc of CUDA_HOME or CUDA_PATH; without these, on the PATH or in the usual folders."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]
    for command in candidates:
        path = shutil.which(command)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True)
        release = re.search(r"release (\d+\.\d+)", done.stdout)
        toolkit = _home(path)
        if done.returncode == 0 and release is not None and toolkit is not None:
            return Nvcc(path, toolkit, release[1])
    return None


def _home(nvcc: str) -> Path | None:
    # A link or a script on the PATH may stand for the toolkit's own: --dryrun tells its folder.
    done = subprocess.run([nvcc, "--dryrun", "-x", "cu", "-c", "-"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.MULTILINE)
    home = Path(top[1]).resolve() if top else Path(nvcc).resolve().parents[1]
    return home if (home / "include" / "cuda_runtime_api.h").is_file() else None


def targets(nvcc: Nvcc) -> list[Target]:
    """The targets in TORCH_CUDA_ARCH_LIST, such as "8.0;9.0+PTX"; without the variable, the GPUs of
    this machine, and without any the default targets that nvcc knows, as for a wheel. Ends the
    build if the list has anything else.
    """
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if wanted:
        found = []
        for entry in wanted:
            match = re.fullmatch(r"(\d+\.\d[af]?)(\+PTX)?", entry)
            if match is None:
                raise SystemExit(
                    f"hookstats: TORCH_CUDA_ARCH_LIST has {entry!r}: expected compute capabilities "
                    "such as '8.0;9.0+PTX'"
                )
            found.append(Target(match[1], match[2] is not None))
        return found
    done = subprocess.run([nvcc.command, "--list-gpu-arch"], capture_output=True, text=True)
    known = done.stdout.split()
    here = [one for one in capabilities_here() if _of_nvcc(one) in known]
    if here:
        return [Target(capability, ptx=False) for capability in here]
    defaults = [one for one in DEFAULT_ARCHITECTURES if _of_nvcc(one) in known]
    return [Target(capability, ptx=capability == defaults[-1]) for capability in defaults]


def _of_nvcc(capability: str) -> str:
    return f"compute_{capability.replace('.', '')}"


def capabilities_here() -> list[str]:
    """The compute capabilities of this machine's GPUs, each once; none without nvidia-smi."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    found = re.findall(r"^\d+\.\d$", done.stdout, re.MULTILINE) if done.returncode == 0 else []
    return sorted(set(found), key=float)


def warning_for(nvcc: Nvcc, torch_cuda: str | None) -> str | None:
    """What to tell where nvcc's CUDA is newer than torch's by a major version; None elsewhere.

    The kernels bring nvcc's CUDA runtime, and a driver serves every runtime of its own major
    version and of older ones.
    """
    if torch_cuda is None or int(nvcc.version.split(".")[0]) <= int(torch_cuda.split(".")[0]):
        return None
    major = nvcc.version.split(".")[0]
    return (
        f"nvcc {nvcc.version} is newer than torch's CUDA {torch_cuda}: the CUDA kernels need a "
        f"driver for CUDA {major}; an older toolkit in CUDA_HOME makes kernels for older drivers"
    )


def compile_objects(
    nvcc: Nvcc, sources: Sequence[Path], include: Path, build: Path, flags: Iterable[str]
) -> list[Path]:
    """The objects of `sources` in `build`; those with changed inputs are compiled anew.

    Raises:
        RuntimeError: nvcc failed; the message has its first error. No other file is begun then.
    """
    depends = [*include.glob("core/*"), *include.glob("cuda/*")]
    newest = max(file.stat().st_mtime for file in depends)
    made_for = targets(nvcc)
    gencode = [flag for target in made_for for flag in target.flags()]
    jobs = int(os.environ.get("MAX_JOBS", 0)) or os.cpu_count() or 1
    # Each nvcc compiles for its targets side by side, too.
    threads = min(jobs, len(made_for))
    common = [nvcc.command, f"-I{include}", *flags, *gencode, f"--threads={threads}", "-c"]
    build.mkdir(parents=True, exist_ok=True)

    failed = Event()

    def compiled(source: Path) -> Path:
        output = build / f"{source.stem}.cu.o"
        command = [*common, str(source), "-o", str(output)]
        said = output.with_suffix(".command")
        is_made = output.is_file() and said.is_file() and output.stat().st_mtime > newest
        # After a failure, which comes earlier in the order of `sources`, results are not looked at.
        if failed.is_set() or (is_made and said.read_text() == shlex.join(command)):
            return output
        print(shlex.join(command), flush=True)
        which = f"{sources.index(source) + 1} of {len(sources)}"
        print(f"hookstats: compiling {source.name}, {which}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout + done.stderr, end="", flush=True)
        if done.returncode != 0:
            failed.set()
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            problem = first_error(lines) or (lines[0] if lines else "silently")
            raise RuntimeError(f"nvcc failed on {source.name}: {problem}")
        said.write_text(shlex.join(command))
        return output

    with ThreadPoolExecutor(jobs // threads) as pool:
        return list(pool.map(compiled, sources))
