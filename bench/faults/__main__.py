"""Runs the corpus of planted faults and sound trainings, and prints what the default rules said.

python -m bench.faults [--tuned | --held-out | --later] [--only GLOB] [--seeds N] [--steps N]
python -m bench.faults --sound [--long] [--only GLOB] [--seeds N]    the sound trainings alone
python -m bench.faults --show FAULT [--out RUN]    the incidents of one run, which RUN keeps
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import torch

from bench.faults.cases import STEPS, Outcome, differs, run_case
from bench.faults.fault import SHARES, Fault
from bench.faults.faults import FAULTS
from bench.faults.models import BASES
from bench.faults.score import print_healthy, print_scores, print_shares, print_sound, score
from bench.faults.sound import PROGRAMS, train


def main() -> int:
    """The exit status: 0 if all that the corpus must reach is reached."""
    options = _options()
    torch.set_num_threads(1)
    if options.show is not None:
        _show(options.show, options)
        return 0
    began = time.process_time()
    if options.sound:
        return 0 if _sound(options) else 1
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
        reached = _sound(options) and reached
    print(f"{time.process_time() - began:.0f} s of CPU")
    return 0 if reached else 1


def _sound(options: argparse.Namespace) -> bool:
    """Train the sound programs, and print what was said; whether it was little enough."""
    found = []
    for program in PROGRAMS.values():
        if (program.long and not options.long) or not fnmatch(program.name, options.only):
            continue
        for seed in range(options.first, options.first + options.seeds):
            alerts, _ = train(program, seed)
            found.append((program, [alert for alert in alerts if alert.level]))
            for alert in found[-1][1][:4]:
                print(f"{program.name:30} {seed} {program.share:9} {alert.message[:120]}")
    return print_sound(found)


def _show(fault: Fault, options: argparse.Namespace) -> None:
    """Print what the rules say of one fault, incident by incident."""
    outcome = run_case(fault.base, fault, options.first, options.steps, options.out)
    for incident in outcome.incidents:
        print(f"{incident.severity}: {incident}")


def _fault(name: str) -> Fault:
    """The fault of this name, of an argument."""
    named = {fault.name: fault for fault in FAULTS}
    if name not in named:
        close = difflib.get_close_matches(name, named, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise argparse.ArgumentTypeError(f"{name!r}: expected the name of a fault{meant}")
    return named[name]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--family", help="init, data, optim, loss, loop, mode, numerics or arch")
    parser.add_argument("--only", default="*", help="a glob for names of faults")
    parser.add_argument("--show", type=_fault, metavar="FAULT", help="print one run's incidents")
    parser.add_argument("--out", type=Path, metavar="RUN", help="with --show: keep the run here")
    for share in SHARES:
        flag = f"--{share.replace(' ', '-')}"
        parser.add_argument(flag, dest="share", action="store_const", const=share)
    parser.add_argument("--sound", action="store_true", help="sound trainings alone")
    parser.add_argument("--long", action="store_true", help="the long ones of these, too")
    parser.add_argument("--healthy", action="store_true", help="healthy runs alone")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="the steps of each run")
    parser.add_argument("--verbose", action="store_true", help="what was said of misses")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
