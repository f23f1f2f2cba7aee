"""doctor: check the installation: versions, the kernels and hooks in use, and why others are not.

It compares one small update with the reference in plain PyTorch. If something is broken, the report
has the command that repairs it. Please add the output of `hookstats doctor` to every bug report.
The exit code is 0 if recording works, 1 if something is broken.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hookstats._version import __version__
from hookstats.cli.output import describe
from hookstats.stats.printable import printable

OPTIONAL = {
    "pyarrow": "run directories",
    "rich": "tables and the command line",
    "scikit-learn": "the data of the demo",
    "pandas": "Run.to_pandas",
    "matplotlib": "Run.plot and notebooks",
    "tensorboard": "the TensorBoard sink and export",
    "wandb": "the Weights & Biases sink",
}
"""The libraries that parts of hookstats need, and these parts."""

_OPS, _NATIVE = "hookstats.kernels.ops", "hookstats.kernels.native"


class Finding(NamedTuple):
    """One line of the report."""

    what: str
    text: str
    broken: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command always checks everything."""


def run(options: argparse.Namespace) -> int:
    broken = False
    for finding in _examine():
        print(
            f"{finding.what:<13}{'BROKEN: ' * finding.broken}{printable(finding.text)}", flush=True
        )
        broken |= finding.broken
    return int(broken)


def _examine() -> Iterator[Finding]:
    yield Finding("hookstats", f"{__version__}, {Path(__file__).parents[1]}")
    implementation = platform.python_implementation()
    yield Finding("python", f"{platform.python_version()} ({implementation}), {sys.executable}")
    yield Finding("machine", f"{platform.platform()}, {os.cpu_count()} CPUs")
    for name, purpose in OPTIONAL.items():
        yield Finding(name, _version(name) or f"no, needed for {purpose}: pip install {name}")
    yield Finding("compiler", _compiler())
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", f"{describe(error)}; run `pip install torch`", broken=True)
        return
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    yield _cpu()
    yield Finding("CUDA kernels", _cuda())
    yield _native()
    yield _self_test()


def _version(distribution: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler() -> str:
    """The compiler that a build would use; only builds need one."""
    import shlex
    import subprocess

    command = os.environ.get("CXX", "c++")
    try:
        words = shlex.split(command) or ["c++"]
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"no: {describe(error)}"
    if done.returncode != 0:
        return f"no: {command} --version: exit code {done.returncode}"
    return f"{command}: {done.stdout.partition(chr(10))[0]}"


def _import(name: str) -> Any:
    """Import a module without its warnings, since the report says the same."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _cpu() -> Finding:
    """Whether the CPU kernels load, and which instruction set they use."""
    try:
        ops = _import(_OPS)
    except ImportError as error:
        return Finding("CPU kernels", describe(error), broken=True)
    import torch

    (library,) = sorted(ops.LIBRARIES.glob("_C.*so"))[:1]
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    forced = f", limited by ATEN_CPU_CAPABILITY={limit}" if limit else ""
    capability = torch.ops.hookstats.cpu_capability()
    return Finding("CPU kernels", f"yes: {library.name} with {capability}{forced}")


def _cuda() -> str:
    """Whether CUDA tensors have kernels, or why not."""
    try:
        ops = _import(_OPS)
    except ImportError:
        return "no: they need the library of the CPU kernels"
    import torch

    if ops.why_missing["cuda"] is not None:
        return f"no: {ops.why_missing['cuda']}"
    if not torch.cuda.is_available():
        return "yes, but torch finds no CUDA device"
    return f"yes, with {torch.cuda.device_count()} of {torch.cuda.get_device_name()}"


def _native() -> Finding:
    """Whether the C++ hooks are in use, or why not: then the Python hooks serve."""
    native = _import(_NATIVE)
    return Finding("C++ hooks", "yes" if native.why_not is None else f"no: {native.why_not}")


def _self_test() -> Finding:
    """Compare one small update by the operator, with histograms, with the same by the reference."""
    import torch

    from hookstats.stats import reference, state
    from hookstats.stats.bins import LogBins

    x = torch.linspace(-3.0, 3.0, 600, device="cpu").reshape(20, 5, 6)
    x[0, :, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e30], device="cpu")
    bins = LogBins()
    states = []
    try:
        ops = _import(_OPS)
        for update in (ops.update_, reference.update_):
            columns = state.identity_moments(5), state.identity_tallies(5)
            counts = torch.zeros(bins.slots, dtype=torch.int64, device="cpu")
            update(x, 1, *columns, counts, bins.descriptor("cpu"))
            states.append((*columns, counts))
    except ImportError:
        return Finding("self-test", "impossible without the CPU kernels", broken=True)
    except (RuntimeError, ValueError) as error:
        return Finding("self-test", describe(error), broken=True)
    (moments, tallies, counts), (right_moments, right_tallies, right_counts) = states
    if not (torch.equal(tallies, right_tallies) and torch.equal(counts, right_counts)):
        return Finding("self-test", "the counts of the operator differ from the reference", True)
    if not torch.allclose(moments, right_moments, rtol=1e-5, atol=1e-6):
        return Finding("self-test", "the moments of the operator differ from the reference", True)
    return Finding("self-test", "the operator agrees with the reference")
