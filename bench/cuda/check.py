"""`make gpu-check`: builds for the GPU that is here, tests, looks for bad accesses, and measures.

Needs a GPU, nvcc and a Python with torch, numpy and pytest; nothing is installed or downloaded.
What cannot be done here is said, and goes into the result. Exit code: 0 if all that was done went
well, 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, it knows no `bench`

from bench.measured import Results
from bench.report import write

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "test_cuda.py",
    "test_cuda_captures.py",
    "test_cuda_ops.py",
    "test_ops.py",
    "test_update_many.py",
)
SECONDS = 460
"""For everything: a limit of eight minutes, with some to spare."""


class Outcome(NamedTuple):
    """How a step went: None is a step that could not be taken here."""

    well: bool | None
    text: str


class Check:
    """The steps, each with what is left of the time."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out = out
        self._end = time.monotonic() + seconds
        out.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def run(
        self, name: str, command: Sequence[str], most: float, **environment: str
    ) -> tuple[int | None, str]:
        """The exit code, None where time ran out, and what the command said, also in a log."""
        log = self.out / f"{name}.log"
        limit = max(1.0, min(most, self.left))
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": paths, **environment}
        with log.open("w") as file:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | None = None
            try:
                code = child.wait(limit)
            except subprocess.TimeoutExpired:
                # All that it started, too: what goes on would be in the times of others.
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return code, log.read_text(errors="replace")

    def build(self, capability: str) -> Outcome:
        """The operators, the hooks and the kernels, for this GPU alone."""
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        code, said = self.run(
            "build", command, 300, FORCE_CUDA="1", TORCH_CUDA_ARCH_LIST=capability
        )
        built = [line for line in said.splitlines() if line.startswith("hookstats: ")]
        if code == 0:
            return Outcome(True, "; ".join(line.partition(": ")[2] for line in built))
        return Outcome(False, last_line(said) if code else "time ran out")

    def test(self) -> Outcome:
        """What is marked as in need of a GPU."""
        for module in ("pytest", "hypothesis", "numpy"):
            if importlib.util.find_spec(module) is None:
                return Outcome(None, f"the tests need {module}: pip install {module}")
        files = [str(ROOT / "tests" / "kernels" / name) for name in TESTS]
        options = ["-q", "-m", "cuda", "-p", "no:cacheprovider", "--tb=short"]
        for category in ("DeprecationWarning", "FutureWarning"):  # of the versions that are here
            options += ["-W", f"default::{category}"]
        code, said = self.run("tests", [sys.executable, "-m", "pytest", *options, *files], 240)
        return Outcome(code == 0, last_line(said) if code is not None else "time ran out")

    def sanitize(self, tool: str) -> Outcome:
        """compute-sanitizer of our own kernels."""
        found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(found).is_file():
            return Outcome(None, "compute-sanitizer is not installed")
        command = [found, "--tool", tool, "--kernel-regex", "kns=hookstats"]
        if tool == "memcheck":
            command += ["--report-api-errors", "no"]  # it is the kernels that are asked about
        command += [sys.executable, "-m", "bench.cuda.kernels"]
        # Without the cache every tensor has an allocation, and an end, of its own.
        code, said = self.run(tool, command, 90, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        return verdict(tool, code, said)

    def measure(self, notes: Sequence[str]) -> Outcome:
        """The benchmark, which writes the result."""
        command = [sys.executable, "-u", "-m", "bench.cuda", "--out", str(self.out)]
        command += ["--seconds", f"{self.left - 30:.0f}"]
        for note in notes:
            command += ["--note", note]
        code, said = self.run("bench", command, self.left)
        if code is None:  # what was measured by then is written
            return Outcome(None, "time ran out")
        return Outcome(code == 0, last_line(said))


def verdict(tool: str, code: int | None, said: str) -> Outcome:
    """What a run of compute-sanitizer means."""
    if code is None:
        return Outcome(None, "time ran out")
    if "Device not supported" in said:
        return Outcome(None, f"{tool} does not work here: Device not supported")
    summary = re.search(r"(ERROR|RACECHECK) SUMMARY: (\d+) (errors?|hazards?)", said)
    agreed = "folds agree with the CPU" in said
    if summary is None or not (agreed or int(summary[2])):
        reason = next((line for line in said.splitlines() if "rror" in line), last_line(said))
        return Outcome(None, f"{tool} does not work here: {reason.strip()}")
    return Outcome(int(summary[2]) == 0 and agreed, summary[0])


def add_note(out: Path, note: str) -> None:
    """Add to the notes of what was written; nothing, if nothing was."""
    path = out / "gpu-check.json"
    if path.is_file():
        results = Results.load(path)
        results.notes.append(note)
        write(results, path)


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def main(given: Sequence[str] | None = None) -> int:
    """Take the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args(given)
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"gpu-check: {sys.executable} has no torch")
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(f"gpu-check: torch {torch.__version__} finds no GPU; it needs one")
    check = Check(options.out, options.seconds)
    major, minor = torch.cuda.get_device_capability()
    outcomes: dict[str, Outcome] = {}

    def note(name: str, outcome: Outcome) -> bool:
        outcomes[name] = outcome
        word = {True: "ok", False: "FAILED", None: "not done"}[outcome.well]
        print(f"gpu-check: {name}: {word}: {outcome.text}", flush=True)
        return outcome.well is True

    if not note("build", check.build(f"{major}.{minor}")):
        print((check.out / "build.log").read_text()[-4000:])
        return 1
    if not note("tests", check.test()) and (check.out / "tests.log").is_file():
        print((check.out / "tests.log").read_text()[-8000:])
    notes = [f"{name}: {outcome.text}" for name, outcome in outcomes.items()]
    if not note("bench", check.measure(notes)):
        print((check.out / "bench.log").read_text()[-4000:])
    for tool in ("memcheck", "racecheck"):
        note(tool, check.sanitize(tool))
        add_note(check.out, f"{tool}: {outcomes[tool].text}")
    said = check.out / "gpu-check.txt"
    if said.is_file():
        print(said.read_text())
        print(f"gpu-check: {check.out}/gpu-check.json and .txt; see bench/results/README.md")
    return int(any(outcome.well is False for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
