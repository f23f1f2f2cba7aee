"""`make gpu-check`: builds for the GPU that is here, tests, looks for bad accesses, and measures.

Six phases, in turn or, by `make gpu-check PHASE=test`, one at a time; each takes less than eight
minutes and is of use alone. Where the libraries fit what is here, they need not be built: those
of another machine, without a GPU perhaps, may be brought along. Needs a Python with torch, NumPy,
pytest and hypothesis, and nvcc for the build; nothing is installed or downloaded. What cannot be
done here is said. Exit code: 0 if all that was done went well, 1
otherwise.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 460
"""For a phase: a limit of eight minutes, with some to spare."""
METRICS = (
    "gpu__time_duration.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "launch__occupancy_limit_registers",
)
"""What ncu is asked of each kernel."""


class Outcome(NamedTuple):
    """How a phase, or a part of one, went: None is what could not be done here."""

    well: bool | None
    text: str


class Check:
    """The phases, each with what is left of its time."""

    def __init__(self, out: Path, seconds: float, capability: str) -> None:
        """capability: of the GPU, such as "9.0", for which the build compiles."""
        self.out = out
        self.capability = capability
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

    def build(self) -> dict[str, Outcome]:
        """The operators, the hooks and the kernels, for this GPU alone."""
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        code, said = self.run(
            "build", command, self.left, FORCE_CUDA="1", TORCH_CUDA_ARCH_LIST=self.capability
        )
        built = [line for line in said.splitlines() if line.startswith("hookstats: ")]
        if code == 0:
            text = "; ".join(line.partition(": ")[2] for line in built)
            return {"build": Outcome(True, text)}
        return {"build": Outcome(False, last_line(said) if code else "time ran out")}

    def test(self) -> dict[str, Outcome]:
        """What is marked as in need of a GPU."""
        for module in ("pytest", "hypothesis", "numpy"):
            if importlib.util.find_spec(module) is None:
                return {"test": Outcome(None, f"the tests need {module}: pip install {module}")}
        files = [str(file) for file in tests_on_gpus()]
        options = ["-q", "-m", "cuda", "-p", "no:cacheprovider", "--tb=short"]
        for category in ("DeprecationWarning", "FutureWarning"):  # of the versions that are here
            options += ["-W", f"default::{category}"]
        command = [sys.executable, "-m", "pytest", *options, *files]
        # Other people's plugins would load under our filters, where each of their warnings fails.
        code, said = self.run("test", command, self.left, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        return {"test": Outcome(code == 0, last_line(said) if code is not None else "time ran out")}

    def sanitize(self) -> dict[str, Outcome]:
        """compute-sanitizer of our own kernels, with each tool."""
        tools = ("memcheck", "racecheck", "synccheck")
        return {tool: self._sanitize(tool, self.left / (3 - i)) for i, tool in enumerate(tools)}

    def _sanitize(self, tool: str, seconds: float) -> Outcome:
        found = tool_of_cuda("compute-sanitizer")
        if found is None:
            return Outcome(None, "compute-sanitizer is not installed")
        command = [found, "--tool", tool, "--kernel-regex", "kns=hookstats"]
        if tool == "memcheck":
            command += ["--report-api-errors", "no"]  # it is the kernels that are asked about
        command += [sys.executable, "-m", "bench.cuda.kernels"]
        # Without the cache every tensor has an allocation, and an end, of its own.
        code, said = self.run(tool, command, seconds, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        return verdict(tool, code, said)

    def bench(self) -> dict[str, Outcome]:
        """The benchmark of the kernels."""
        return self._bench("bench", "kernels")

    def training(self) -> dict[str, Outcome]:
        """What a watch, and others, take of trainings."""
        return self._bench("training", "trainings")

    def _bench(self, name: str, part: str) -> dict[str, Outcome]:
        """Write the results of a part; what an earlier call measured stays."""
        command = [sys.executable, "-u", "-m", "bench.cuda", "--out", str(self.out), "--resume"]
        command += ["--seconds", f"{self.left - 60:.0f}", "--part", part]
        code, said = self.run(name, command, self.left)
        if code is None:  # what was measured by then is written
            return {name: Outcome(None, "time ran out: another call goes on from here")}
        return {name: Outcome(code == 0, last_line(said))}

    def profile(self) -> dict[str, Outcome]:
        """Nsight Compute's counters of the kernels of the main cases, as CSV."""
        found = tool_of_cuda("ncu")
        if found is None:
            return {"profile": Outcome(None, "ncu is not installed")}
        # At the clocks as they are: those of a machine that is lent are not ours to set.
        command = [found, "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--kernel-name-base", "mangled", "--kernel-name", "regex:hookstats"]
        command += ["--metrics", ",".join(METRICS), sys.executable, "-m", "bench.cuda.profiled"]
        code, said = self.run("profile", command, self.left)
        rows = [line for line in said.splitlines() if line.startswith('"') and "hookstats" in line]
        if code != 0 or not rows:
            reason = next((line for line in said.splitlines() if "ERROR" in line), last_line(said))
            text = "time ran out" if code is None else f"ncu does not work here: {reason.strip()}"
            return {"profile": Outcome(None, text)}
        return {"profile": Outcome(True, f"{len(rows)} kernels in {self.out}/profile.log")}


PHASES: dict[str, Callable[[Check], dict[str, Outcome]]] = {
    "build": Check.build,
    "test": Check.test,
    "sanitize": Check.sanitize,
    "bench": Check.bench,
    "training": Check.training,
    "profile": Check.profile,
}


def tests_on_gpus() -> list[Path]:
    """The files that have tests marked `cuda`; others may need what is not installed here."""
    files = sorted((ROOT / "tests").glob("*/test_*.py"))
    return [file for file in files if re.search(r"mark\.cuda\b|\bon_gpu\b", file.read_text())]


def tool_of_cuda(name: str) -> str | None:
    """The path of a tool that comes with CUDA."""
    return shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")


def verdict(tool: str, code: int | None, said: str) -> Outcome:
    """What a run of compute-sanitizer means."""
    if code is None:
        return Outcome(None, "time ran out")
    if "Device not supported" in said:
        return Outcome(None, f"{tool} does not work here: Device not supported")
    summary = re.search(r"(ERROR|RACECHECK) SUMMARY: (\d+) (errors?|hazards?)", said)
    agreed = "updates agree with the CPU" in said
    if summary is None or not (agreed or int(summary[2])):
        reason = next((line for line in said.splitlines() if "rror" in line), last_line(said))
        return Outcome(None, f"{tool} does not work here: {reason.strip()}")
    return Outcome(int(summary[2]) == 0 and agreed, summary[0])


def _word(outcome: Outcome) -> str:
    return {True: "ok", False: "FAILED", None: "not done"}[outcome.well]


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each phase")
    parser.add_argument("--phase", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument(
        "--capability", help="of the GPU to build for, such as 9.0, where there is none"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Take the phases."""
    options = arguments(given)
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"gpu-check: {sys.executable} has no torch")
    import torch

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        major, minor = torch.cuda.get_device_capability()
        capability = options.capability or f"{major}.{minor}"
    elif options.capability and options.phase == ["build"]:
        capability = options.capability
    else:
        raise SystemExit(
            f"gpu-check: torch {torch.__version__} finds no GPU; only --phase build "
            "with --capability goes without one"
        )
    failed = False
    for phase in options.phase:
        check = Check(options.out, options.seconds, capability)
        outcomes = PHASES[phase](check)
        for name, outcome in outcomes.items():
            print(f"gpu-check: {name}: {_word(outcome)}: {outcome.text}", flush=True)
            if outcome.well is False:
                failed = True
                log = options.out / f"{name}.log"
                print(log.read_text(errors="replace")[-8000:] if log.is_file() else "")
        if failed and phase == "build":
            return 1
    said = options.out / "gpu-check.txt"
    if said.is_file():
        print(said.read_text())
        print(f"gpu-check: {options.out}/gpu-check.json: keep it in bench/results")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
