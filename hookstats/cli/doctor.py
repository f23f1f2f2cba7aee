"""doctor: check the installation: versions, which kernels and hooks are in use, and why not others.

Runs one small update against the plain PyTorch reference.
Exit code: 0 recording works, 1 it does not. `hookstats doctor` belongs into every bug report.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from hookstats._version import __version__
from hookstats.cli.output import describe
from hookstats.kernels import native
from hookstats.stats import reference, state
from hookstats.stats.bins import LogBins

OPTIONAL = {
    "pyarrow": "run directories",
    "rich": "tables and the command line",
    "scikit-learn": "the demo's data",
    "pandas": "Run.to_pandas",
    "matplotlib": "Run.plot",
    "tensorboard": "the TensorBoard sink and export",
    "wandb": "the Weights & Biases sink",
}
"""Libraries that parts of hookstats need, and which parts."""


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    text: str
    broken: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: it looks at everything."""


def run(options: argparse.Namespace) -> int:
    broken = False
    for finding in _examine():
        print(f"{finding.what:<13}{'BROKEN: ' * finding.broken}{finding.text}", flush=True)
        broken |= finding.broken
    return int(broken)


def _examine() -> Iterator[Finding]:
    yield Finding("hookstats", f"{__version__}, {Path(__file__).parents[1]}")
    implementation = platform.python_implementation()
    yield Finding("python", f"{platform.python_version()} ({implementation}), {sys.executable}")
    yield Finding("machine", f"{platform.platform()}, {os.cpu_count()} CPUs")
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for name, purpose in OPTIONAL.items():
        yield Finding(name, _version(name) or f"no, {purpose} would need it: pip install {name}")
    yield Finding("compiler", _compiler())
    yield _cpu()
    yield Finding("CUDA kernels", _cuda())
    yield Finding("C++ hooks", _native())
    yield _self_test()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler() -> str:
    """The compiler that a build would take; only builds need one."""
    command = os.environ.get("CXX", "c++")
    try:
        words = shlex.split(command) or ["c++"]
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"no: {describe(error)}"
    if done.returncode != 0:
        return f"no: {command} --version: exit code {done.returncode}"
    return f"{command}: {done.stdout.partition(chr(10))[0]}"


def _cpu() -> Finding:
    try:
        ops = importlib.import_module("hookstats.kernels.ops")
    except ImportError as error:
        return Finding("CPU kernels", str(error), broken=True)
    (library,) = sorted(ops.LIBRARIES.glob("_C.*so"))[:1]
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    forced = f", limited by ATEN_CPU_CAPABILITY={limit}" if limit else ""
    capability = torch.ops.hookstats.cpu_capability()
    return Finding("CPU kernels", f"yes: {library.name} with {capability}{forced}")


def _cuda() -> str:
    """Whether CUDA tensors have a kernel, and if not, why."""
    try:
        ops = importlib.import_module("hookstats.kernels.ops")
    except ImportError:
        return "no: they need the CPU's library"
    if ops.why_missing["cuda"] is not None:
        return f"no: {ops.why_missing['cuda']}"
    if not torch.cuda.is_available():
        return "yes, but torch finds no CUDA device"
    return f"yes, with {torch.cuda.device_count()} of {torch.cuda.get_device_name()}"


def _native() -> str:
    """Whether the hooks written in C++ are in use, and if not, why."""
    return "yes" if native.why_not is None else f"no: {native.why_not}"


def _self_test() -> Finding:
    """One small update, with histograms, by the operator and by its definition in plain PyTorch."""
    x = torch.linspace(-3.0, 3.0, 600).reshape(20, 5, 6)
    x[0, :, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e30])
    bins = LogBins()
    states = []
    try:
        ops = importlib.import_module("hookstats.kernels.ops")
        for update in (ops.update_, reference.update_):
            columns = state.identity_moments(5), state.identity_tallies(5)
            counts = torch.zeros(bins.slots, dtype=torch.int64)
            update(x, 1, *columns, counts, bins.descriptor("cpu"))
            states.append((*columns, counts))
    except (ImportError, RuntimeError, ValueError) as error:
        return Finding("self-test", " ".join(str(error).split()), broken=True)
    (moments, tallies, counts), (right_moments, right_tallies, right_counts) = states
    if not (torch.equal(tallies, right_tallies) and torch.equal(counts, right_counts)):
        return Finding("self-test", "the operator counts otherwise than the reference", True)
    if not torch.allclose(moments, right_moments, rtol=1e-5, atol=1e-6):
        return Finding("self-test", "the operator has other moments than the reference", True)
    return Finding("self-test", "the operator agrees with the reference")
