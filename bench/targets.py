"""TARGETS: what hookstats is to reach on a CPU; ratios(), added(): figures that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.measured import Case, Results
from bench.verdicts import Found, Target

MOMENTS = ("moments",)
HISTOGRAMS = ("moments + 64 linear bins per channel", "moments + log bins of the tensor")
DISTRIBUTIONS = tuple(f"distributions, in cache: {what}" for what in HISTOGRAMS)
SIZES = "scaling with the size"
CALLS = "calls on small tensors"
STEPS = "training step"
SMALL = "training step of three modules, until its records are written"
BUDGET = "a budget"
IDLE = "steps that are not recorded"
SAMPLED = ("sampled histograms, CPU time of one thread: moments + log bins of the tensor",)
_MASKED = "masks, CPU time of one thread: "
MASKED = (f"{_MASKED}moments", f"{_MASKED}moments + log bins of the tensor")
START = "starting the command line"
WRITTEN = "the page of a long run, CPU time"
SHOWN = "the page of a long run in a browser"
MB = 1 << 20


def _cases(
    results: Results, titles: tuple[str, ...], dtypes: tuple[str, ...] = ()
) -> Iterator[Case]:
    for case in results.cases:
        if case.table.title in titles and (not dtypes or case.name.endswith(dtypes)):
            yield case


def ratios(
    titles: tuple[str, ...], peer: str, to: str, dtypes: tuple[str, ...] = ()
) -> Callable[[Results], Found]:
    """Of one peer to another, in the tables of these titles, of all or of some dtypes."""

    def figures(results: Results) -> Found:
        for case in _cases(results, titles, dtypes):
            if peer in case.seconds and to in case.seconds:
                yield f"{_short(case)} {case.name}", case.ratio(peer, to)

    return figures


def _short(case: Case) -> str:
    """How the table of a case is called in a line of its own."""
    return case.table.title.removeprefix("moments + ").removeprefix("distributions, in cache: ")


def _ns(results: Results) -> Found:
    for case in _cases(results, HISTOGRAMS):
        yield f"{_short(case)} {case.name}", case.value("hookstats")


def _skewed(results: Results) -> Found:
    for case in _cases(results, DISTRIBUTIONS):
        for skewed in ("constant", "99% zeros"):
            yield f"{_short(case)} {case.name}, {skewed}", case.ratio(skewed, "Gaussian")


def _threads(results: Results) -> Found:
    yield from ratios(ALL, "1 thread", "hookstats")(results)
    for case in results.of(SIZES):
        if case.facts["_bytes"] > MB:
            yield f"whole tensor, {case.name}", case.ratio("1 thread", "hookstats")


def _woken(results: Results) -> Found:
    for case in results.of(CALLS):
        if "_woken" in case.facts:
            yield case.name, case.facts["_woken"]


def _call(results: Results) -> Found:
    for case in results.of(CALLS):
        yield case.name, case.value("hookstats")


def _started(results: Results) -> Found:
    for case in results.of(START):
        for command in case.table.ours:
            yield command, case.value(command) / case.table.scale


def _page(title: str, peer: str) -> Callable[[Results], Found]:
    def figures(results: Results) -> Found:
        for case in results.of(title):
            yield case.name, case.value(peer)

    return figures


def _small(results: Results) -> Found:
    for case in results.of(SMALL):
        yield case.name, case.ratio("watch out=", "no hooks")


def _stalls(results: Results) -> Found:
    for case in results.of(SMALL):
        yield case.name, case.facts["_stalls"]


def added(title: str, peer: str, model: str = "") -> Callable[[Results], Found]:
    """Percent that `peer` adds to the floor, in the cases that have `model` in their names."""

    def figures(results: Results) -> Found:
        for case in results.of(title):
            if model in case.name:
                yield case.name, 100 * (case.ratio(peer, case.table.floor) - 1)

    return figures


def _to_read(model: str) -> Callable[[Results], Found]:
    """What `watch` adds to a step of a model, by a read of all that it observes."""

    def figures(results: Results) -> Found:
        for case in results.of(STEPS):
            if model in case.name and case.table.read in case.seconds:
                yield case.name, case.to_read("watch")

    return figures


def _steps(what: str, peer: str) -> Iterator[Target]:
    """What recording moments `what` may add to a training step, every step and one of ten."""
    for model, every, seldom in (("GPT-2", 4.0, 0.5), ("ResNet-50", 8.0, 1.0), ("MLP", 20.0, 2.5)):
        for limit, suffix in ((every, ""), (seldom, " every=10")):
            claim = f"{model}: moments{what}{suffix or ' every step'}: added"
            yield Target(claim, limit, added(STEPS, peer + suffix, model), "%")


FP32 = ("fp32",)
NARROW = ("bf16", "fp16")
ALL = MOMENTS + HISTOGRAMS
TARGETS = (
    Target("moments, fp32: to a read", 1.4, ratios(MOMENTS, "hookstats", "read", FP32), "x"),
    Target("moments, 16 bits: to a read", 2.0, ratios(MOMENTS, "hookstats", "read", NARROW), "x"),
    Target("moments: faster than compile", 10, ratios(MOMENTS, "compile", "hookstats"), "x", True),
    Target(
        "histogram, fp32: to a read",
        2.5,
        ratios(HISTOGRAMS, "hookstats", "read", FP32),
        "x",
    ),
    Target("histogram: per element", 0.35, _ns, " ns"),
    Target(
        "histogram: faster than compile",
        9,
        ratios(HISTOGRAMS, "compile", "hookstats"),
        "x",
        True,
    ),
    Target(
        "histogram: faster than eager",
        35,
        ratios(HISTOGRAMS, "eager", "hookstats"),
        "x",
        True,
    ),
    Target("histogram: constant, 99% zeros to Gaussian", 1.3, _skewed, "x"),
    Target("AVX2 to AVX-512", 1.8, ratios(ALL, "AVX2", "hookstats"), "x"),
    Target("baseline to compile", 1.0, ratios(ALL, "baseline", "compile"), "x"),
    Target("over 1 MB: two threads faster than one", 1.8, _threads, "x", True),
    Target("16 KB: threads started", 0, _woken),
    Target("up to 16 KB: a call", 3.0, _call, " us"),
    Target("command line: CPU time of help and typos", 0.25, _started, " s"),
    Target("page of a long run: CPU time", 8, _page(WRITTEN, "report"), " s"),
    Target("page of a long run: first paint", 1000, _page(SHOWN, "first paint"), " ms"),
    *(
        Target(f"page of a long run: {redraw}", 30, _page(SHOWN, redraw), " ms")
        for redraw in ("moving the cursor", "another statistic", "against the median")
    ),
    Target("three modules, a run directory and rules: to a step without", 1.5, _small, "x"),
    Target("the same: steps in which training waits", 1.0, _stalls, "%"),
    Target("GPT-2: added with log bins, to a read", 1.6, _to_read("GPT-2"), "x"),
    Target("ResNet-50: added with log bins, to a read", 1.8, _to_read("ResNet-50"), "x"),
    Target("sample=8: to moments alone", 1.15, ratios(SAMPLED, "sample=8", "moments"), "x"),
    Target("a mask that keeps all rows: to none", 1.1, ratios(MASKED, "all kept", "no mask"), "x"),
    Target("a mask that keeps 60 %: to none", 1.1, ratios(MASKED, "60% kept", "no mask"), "x"),
    Target("MLP 64 wide, paused: CPU time added", 0.5, added(IDLE, "paused"), "%"),
    Target("MLP 64 wide, every=100: CPU time added", 0.5, added(IDLE, "every=100"), "%"),
    Target("budget of 1%: added", 1.3, added(f"{BUDGET} of 1%", "budget=0.01"), "%"),
    Target("budget of 3%: added", 3.9, added(f"{BUDGET} of 3%", "budget=0.03"), "%"),
    *_steps("", "bins=None"),
    *_steps(" and log bins", "watch"),
)
