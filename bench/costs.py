"""python -m bench.costs OUT.json [--table]: what recorders cost a training, by whole processes.

All variants of a training live at once, a process each, and take turns of about a second while the
others wait: a machine that slows down slows all of them. `ms` is a step's time, the median of the
turns. `wall`, a step's time, and `cpu`, the CPU time of all threads since the turn before, are
ratios to the first variant, of sums over the turns: a median would miss steps that few turns have.
With --table, print the table that the documentation quotes from a file that there is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
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
TURN = 1.0  # seconds
Took = dict[str, float]
"""The `steps` of a turn, and by each, in seconds, `wall` time and `cpu` time, see above."""


def train(job: Job, attach: Attach, out: str, turns: Iterable[tuple[int, float]]) -> Iterator[Took]:
    """Takes turns of at least so many steps and seconds, of which the first is the warm-up."""
    torch.manual_seed(0)
    model, (x, y) = job.model(), job.batch()
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    after_backward = attach(model, optimizer, out)
    step, spent = 0, 0.0
    for turn, (least, seconds) in enumerate(turns):
        if turn == 1:
            gc.collect()
            spent = process_time()  # what the warm-up left to threads is no step's of this turn
        began, first = perf_counter(), step
        while step < first + least or perf_counter() - began < seconds:
            optimizer.zero_grad()
            job.loss(model, x, y).backward()  # type: ignore[no-untyped-call]
            after_backward(step)
            optimizer.step()
            step += 1
        wall, cpu, steps = perf_counter() - began, process_time() - spent, step - first
        spent += cpu
        yield {"wall": wall / steps, "cpu": cpu / steps, "steps": steps}


def order(variants: Sequence[str], number: int) -> list[str]:
    """The variants in the order of a round: a rotation, then its reverse, then the next one."""
    first = number // 2 % len(variants)
    rotated = [*variants[first:], *variants[:first]]
    return rotated[::-1] if number % 2 else rotated


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


def _turns(training: str, options: argparse.Namespace) -> dict[str, list[Took]]:
    """The turns of each variant's process, round by round."""
    processes, turns = {}, {variant: list[Took]() for variant in options.variants}
    with ExitStack() as stack:
        for variant in turns:
            out = stack.enter_context(tempfile.TemporaryDirectory())
            command = [sys.executable, "-m", "bench.costs", out, "--train", training, variant]
            process = Popen(command, stdin=PIPE, stdout=PIPE, text=True)
            processes[variant] = stack.enter_context(process)
            _turn(process, max(1, options.warm_up), 0.0)
        for number in range(max(1, round(options.seconds / TURN))):
            for variant in order(options.variants, number):
                turns[variant].append(_turn(processes[variant], 1, TURN))
    return turns


def _turn(process: Popen[str], steps: int, seconds: float) -> Took:
    """A turn of a process, of at least so many steps and seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps((steps, seconds)), file=process.stdin, flush=True)
    took: Took = json.loads(process.stdout.readline())
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--train", nargs=2, metavar=("TRAINING", "VARIANT"))
    parser.add_argument("--only", default="", help="a part of the name of the trainings to run")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--warm-up", type=int, default=100, help="steps that are not timed")
    parser.add_argument("--seconds", type=float, default=20.0, help="of turns, for each variant")
    options = parser.parse_args()
    if options.table:
        print("\n".join(rows(json.loads(options.out.read_text()))))
        return
    if options.train:
        training, variant = options.train
        job, attach = TRAININGS[training], VARIANTS[variant]
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what recorders print is no answer
        for took in train(job, attach, str(options.out), map(json.loads, sys.stdin)):
            print(json.dumps(took), file=answers, flush=True)
        os._exit(0)  # what a recorder does at exit is no step
    result: dict[str, Any] = {"machine": machine(), "options": vars(options) | {"out": ""}}
    for training in (name for name in TRAININGS if options.only in name):
        turns = _turns(training, options)
        base = turns[options.variants[0]]
        result[training] = {
            variant: {
                "ms": round(1e3 * median(t["wall"] for t in found), 3),
                **{
                    clock: round(sum(t[clock] for t in found) / sum(t[clock] for t in base), 4)
                    for clock in ("wall", "cpu")
                },
            }
            for variant, found in turns.items()
        }
        print(training, json.dumps(result[training], indent=1), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
