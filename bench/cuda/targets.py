"""TARGETS: what hookstats is to reach on a GPU."""

from __future__ import annotations

from bench.cuda import tables
from bench.cuda.tables import LAUNCH, SUM
from bench.measured import Results
from bench.targets import added, ratios
from bench.verdicts import Found, Target


def _skewed(results: Results) -> Found:
    for what, table in tables.SKEWED.items():
        for case in results.of(table.title):
            for content in table.ours:
                yield f"{case.name} {what}, {content}", case.ratio(table.floor, content)


def _hook(results: Results) -> Found:
    for case in results.of(tables.HOOK.title):
        yield case.name, case.value("watch")


def _observation(results: Results) -> Found:
    for case in results.of(tables.HOST.title):
        if LAUNCH in case.seconds:
            yield case.name, case.over_floor("watch") - case.value(LAUNCH)


_RATES = dict(zip(tables.WHATS, ((0.92, 0.92), (0.80, 0.65), (0.80, 0.65)), strict=True))
TARGETS = (
    *(
        Target(
            f"{what}, {dtype}: of torch.sum's rate",
            rate,
            ratios((tables.READING.title,), SUM, what, (dtype,)),
            "x",
            at_least=True,
        )
        for what, rates in _RATES.items()
        for dtype, rate in zip(("fp32", "bf16"), rates, strict=True)
    ),
    Target("skewed data: of the rate on normal data", 0.80, _skewed, "x", at_least=True),
    Target(
        "gradients: to a read", 1.3, ratios((tables.GRADIENTS.title,), "update_many_", SUM), "x"
    ),
    Target("gradients: the host's time", 1.0, _hook, " ms"),
    Target("one observation: the host's time over a launch", 2.0, _observation, " us"),
    Target("transformer, every=1: added", 4.0, added(tables.TRANSFORMER.title, "every=1"), "%"),
    Target("transformer, every=10: added", 0.5, added(tables.TRANSFORMER.title, "every=10"), "%"),
)
