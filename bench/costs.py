"""python -m bench.costs OUT.json [--table]: what recorders cost a training, by whole processes.

Every variant of every training runs in a process, one after the other, several times: a warm-up,
then at least SECONDS of steps, of which the mean counts. `wall` is a step's time, `cpu` the CPU
time of all threads of the process: medians of the ratios to the first variant's run of the same
round. With --table, print the table that the documentation quotes from a file that there is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from bench.cuda.trainings import mlp
from bench.machine import machine
from bench.steps.models import JOBS, Job, classes

Attach = Callable[[nn.Module, Optimizer, str], Callable[[int], None]]
"""Begins to record into a directory; returns what is called in each step, after the backward."""


def _nothing(step: int) -> None:
    """A training without a recorder."""


def _watch(**options: Any) -> Attach:
    def attach(model: nn.Module, optimizer: Optimizer, out: str) -> Callable[[int], None]:
        import hookstats

        hookstats.watch(model, optimizer, out=out, **options)
        return _nothing

    return attach


def _wandb(log_freq: int) -> Attach:
    def attach(model: nn.Module, optimizer: Optimizer, out: str) -> Callable[[int], None]:
        import wandb

        run = wandb.init(mode="offline", dir=out, settings=wandb.Settings(console="off"))
        run.watch(model, log="gradients", log_freq=log_freq)
        return lambda step: run.log({"step": step})

    return attach


VARIANTS: dict[str, Attach] = {
    "no recorder": lambda model, optimizer, out: _nothing,
    "default": _watch(),
    "every=1": _watch(every=1),
    "wandb, log_freq=1000": _wandb(1000),
    "wandb, log_freq=1": _wandb(1),
}
WIDTH = 64
MLP = Job(
    lambda: mlp(WIDTH, 100),
    lambda: (torch.randn(32, WIDTH), torch.randint(WIDTH, (32,))),
    classes,
    steps=1,
)
TRAININGS = {name: job for name, job in JOBS.items() if "MLP" not in name}
TRAININGS["100-layer MLP, 32x64"] = MLP


def train(job: Job, attach: Attach, warm_up: int, seconds: float, out: str) -> dict[str, float]:
    """Seconds of a step, by the wall clock and by the CPU time of all threads."""
    torch.manual_seed(0)
    model, (x, y) = job.model(), job.batch()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    after_backward = attach(model, optimizer, out)
    steps, began, cpu = -warm_up, 0.0, 0.0
    while steps < 1 or perf_counter() - began < seconds:
        if steps == 0:
            gc.collect()
            began, cpu = perf_counter(), process_time()
        optimizer.zero_grad()
        job.loss(model, x, y).backward()  # type: ignore[no-untyped-call]
        after_backward(steps)
        optimizer.step()
        steps += 1
    return {
        "wall": (perf_counter() - began) / steps,
        "cpu": (process_time() - cpu) / steps,
        "steps": steps,
    }


def rows(costs: Mapping[str, Any]) -> list[str]:
    """The table of a file in Markdown: what each variant adds to a step's time."""
    trainings = {name: costs[name] for name in TRAININGS if name in costs}
    base, *names = [name for name in VARIANTS if any(name in each for each in trainings.values())]
    columns = ["training", "step", *names]
    found = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for training, each in trainings.items():
        added = [_added(each[name]["wall"]) if name in each else "" for name in names]
        found.append(f"| {training} | {each[base]['ms']:.0f} ms | {' | '.join(added)} |")
    return found


def _added(ratio: float) -> str:
    """What a ratio of times adds, as text."""
    return f"+{100 * (ratio - 1):.0f} %" if ratio >= 1.005 else "none measured"


def _in_process(training: str, variant: str, options: argparse.Namespace) -> dict[str, float]:
    """`train` in another process; its last line is the result."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "bench.costs", out, "--train", training, variant]
        command += ["--warm-up", str(options.warm_up), "--seconds", str(options.seconds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--train", nargs=2, metavar=("TRAINING", "VARIANT"))
    parser.add_argument("--only", default="", help="a part of the name of the trainings to run")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--warm-up", type=int, default=100, help="steps that are not timed")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.table:
        print("\n".join(rows(json.loads(options.out.read_text()))))
        return
    if options.train:
        training, variant = options.train
        job, attach = TRAININGS[training], VARIANTS[variant]
        print(json.dumps(train(job, attach, options.warm_up, options.seconds, str(options.out))))
        sys.stdout.flush()
        os._exit(0)  # what a recorder does at exit is no step
    result: dict[str, Any] = {"machine": machine(), "options": vars(options) | {"out": ""}}
    for training in (name for name in TRAININGS if options.only in name):
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.variants}
        for _ in range(options.repeats):
            for variant in options.variants:
                runs[variant].append(_in_process(training, variant, options))
        base = runs[options.variants[0]]
        result[training] = {
            variant: {
                "ms": round(1e3 * median(run["wall"] for run in found), 3),
                **{
                    clock: round(median(r[clock] / b[clock] for r, b in pairs), 4)
                    for clock in ("wall", "cpu")
                },
            }
            for variant, found in runs.items()
            if (pairs := list(zip(found, base, strict=True)))
        }
        print(training, json.dumps(result[training], indent=1), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
