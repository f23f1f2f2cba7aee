"""Runs the corpus of planted faults and healthy runs, and prints what the default rules said.

python -m bench.faults [--tuned | --held-out | --later] [--only GLOB] [--seeds N] [--steps N]
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch

import torch

from bench.faults.cases import STEPS, Outcome, differs, run_case
from bench.faults.fault import SHARES
from bench.faults.faults import FAULTS
from bench.faults.models import BASES
from bench.faults.score import print_healthy, print_scores, print_shares, score


def main() -> int:
    """The exit status: 0 if all that the corpus must reach is reached."""
    options = _options()
    torch.set_num_threads(1)
    began = time.process_time()
    healthy: dict[tuple[str, int], Outcome] = {}

    def twin(base: str, seed: int) -> Outcome:
        if (base, seed) not in healthy:
            healthy[base, seed] = run_case(base, None, seed, options.steps)
        return healthy[base, seed]

    scores = []
    for fault in FAULTS:
        if options.healthy or not fnmatch(fault.name, options.only):
            continue
        if options.share not in (None, fault.share):
            continue
        if options.family not in (None, fault.family):
            continue
        for seed in range(options.first, options.first + options.seeds):
            outcome = run_case(fault.base, fault, seed, options.steps)
            counts = differs(fault, outcome, twin(fault.base, seed))
            scores.append(score(fault, seed, outcome, counts))
    print_scores(scores, options.verbose)
    reached = print_shares(scores)
    if options.only == "*" and options.family is None and options.share is None:
        for base in BASES:
            for seed in range(options.first, options.first + options.seeds):
                reached = print_healthy(base, seed, twin(base, seed)) and reached
    print(f"{time.process_time() - began:.0f} s of CPU")
    return 0 if reached else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--family", help="init, data, optim, numerics or arch")
    parser.add_argument("--only", default="*", help="a glob for names of faults")
    for share in SHARES:
        flag = f"--{share.replace(' ', '-')}"
        parser.add_argument(flag, dest="share", action="store_const", const=share)
    parser.add_argument("--healthy", action="store_true", help="healthy runs alone")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="the steps of each run")
    parser.add_argument("--verbose", action="store_true", help="what was said of misses")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
