"""What the default rules cost beside a GPT-2 step: CPU time of the thread that checks records.

python -m bench.rules [--steps N] [--layers N] [--width N] [--batch N] [--tokens N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hookstats.records.record import StepRecord
from hookstats.rules import Monitor, Rules, Setup
from hookstats.watching import watch as watching


class Timed(Monitor):
    """The Monitor that watch makes, which notes the CPU time of its thread in each step."""

    def __init__(self, rules: Rules, setup: Setup | None) -> None:
        super().__init__(rules, setup)
        self.seconds: list[float] = []
        self.tensors = 0

    def __call__(self, record: StepRecord) -> None:
        """Check a step, and act on the alerts."""
        self.tensors = len(record)
        began = time.thread_time()
        super().__call__(record)
        self.seconds.append(time.thread_time() - began)


def main() -> None:
    """Train for some steps, and print what they and the rules took."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=options.layers, n_embd=options.width, n_head=12)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(config.vocab_size, (options.steps, options.batch, options.tokens))
    whole = []
    made: list[Timed] = []

    def make(rules: Rules, setup: Setup | None) -> Timed:
        made.append(Timed(rules, setup))
        return made[-1]

    with (
        tempfile.TemporaryDirectory() as out,
        patch.object(watching, "Monitor", make),
        watching.watch(model, optimizer, every=1, out=Path(out, "run"), rules="default") as w,
    ):
        for batch in tokens:
            began = time.process_time()
            optimizer.zero_grad()
            loss = model(batch, labels=batch).loss
            w.log(loss=loss)
            loss.backward()
            optimizer.step()
            w.latest  # noqa: B018  # waits for the step's record, and so for its rules
            whole.append(time.process_time() - began)
    print(_said(made[0], whole))


def _said(timed: Timed, whole: Sequence[float]) -> str:
    rules, step = statistics.median(timed.seconds), statistics.median(whole)
    return (
        f"{timed.tensors} tensors, {len(whole)} steps: rules take {1e3 * rules:.1f} ms of CPU, "
        f"{rules / step:.2%} of {step:.2f} s (at most {1e3 * max(timed.seconds):.0f} ms)"
    )


if __name__ == "__main__":
    main()
