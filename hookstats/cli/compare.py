"""compare: find the first step and layer where two runs differ, and what differs most.

Counts are compared exactly, moments (mean, variance, extremes, l1) to the last bit or within
--rtol. Differences are relative: of a moment to its magnitude, of a mean to the rms, of a count to
the number of values. In the row "hist", A and B count the values in bins where the other run has
fewer. The second table lists the sites by how much they differ over all steps: by the ratio of
their rms, and by their means and mean magnitudes in units of it. Sites of only one run come first,
and sites with NaNs in only one. In the step of "in step", "change" compares the rms of B with that
of A, and "values moved" is the share of the values that lie in other bins.
The exit code is that of diff: 0 if the runs are equal, 1 if they differ, 2 after an error.

examples:
  hookstats compare runs/a runs/b
  hookstats compare runs/a runs/b --layer 'encoder.*' --kind output
  hookstats compare runs/a runs/b --rtol 1e-5     for processors that round differently
"""

from __future__ import annotations

import argparse
from functools import partial

from hookstats.cli.arguments import add_rank, add_run, add_selection, natural

LIMIT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "a")
    add_run(parser, "b")
    parser.add_argument(
        "--rtol",
        type=float,
        default=0.0,
        metavar="X",
        help="relative difference of moments that counts as equal (default: 0)",
    )
    add_selection(parser)
    add_rank(parser)
    parser.add_argument(
        "--common", action="store_true", help="ignore steps and sites that only one run has"
    )
    parser.add_argument(
        "--limit",
        type=natural,
        default=LIMIT,
        metavar="N",
        help=f"list at most N sites (default: {LIMIT})",
    )


def run(options: argparse.Namespace) -> int:
    from hookstats.cli.inputs import check_chosen, choose, open_path
    from hookstats.cli.output import stdout
    from hookstats.insight.comparison import compare_runs
    from hookstats.show.comparison import print_comparison
    from hookstats.show.progress import track

    # Strict: nobody knows whether an unreadable part is equal.
    a, b = (open_path(path, strict=True, rank=options.rank) for path in (options.a, options.b))
    console = stdout()
    for name in ("bins", "channel_bins"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            console.print(
                f"{name} differ ({one}, {other}): histograms are not compared", soft_wrap=True
            )
    found = compare_runs(
        *(a, b, lambda keys: choose(keys, options.layer, options.kind)),
        rtol=options.rtol,
        common=options.common,
        shown=partial(track, what="comparing"),
    )
    if found.steps:
        check_chosen(list(found.seen), options.layer, options.kind)
    print_comparison(console, found, limit=options.limit, rtol=options.rtol, rank=options.rank)
    return int(bool(found))
