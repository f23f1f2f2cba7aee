"""RATES, TARGETS: what hookstats is to reach on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.cuda import tables
from bench.cuda.tables import ALL, LAUNCH, LOG, MOMENTS, SUM
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


class Rate(NamedTuple):
    """The least share of torch.sum's rate, of one dtype."""

    what: str
    dtype: str
    least: float
    of_columns: float
    """Where channels are side by side."""

    def allows(self, case: str) -> float:
        """The least share for a case, by its name."""
        return self.of_columns if case.startswith("(N, L, ") else self.least


RATES = (
    Rate(MOMENTS, "fp32", 0.92, 0.92),
    Rate(MOMENTS, "bf16", 0.92, 0.92),
    Rate(LOG, "fp32", 0.90, 0.90),
    Rate(LOG, "bf16", 0.80, 0.60),
    Rate(ALL, "fp32", 0.65, 0.65),
    Rate(ALL, "bf16", 0.45, 0.45),
)
EVERY_STEP, EVERY_TENTH = 3.0, 0.3
"""Percent that a transformer's step may take longer."""


def _reading(rate: Rate, least: float) -> Callable[[Results], Found]:
    every = ratios((tables.READING.title,), SUM, rate.what, (rate.dtype,))

    def figures(results: Results) -> Found:
        for name, ratio in every(results):
            if rate.allows(name.removeprefix(f"{tables.READING.title} ")) == least:
                yield name, ratio

    return figures


def _rates() -> Iterator[Target]:
    for rate in RATES:
        for least in sorted({rate.least, rate.of_columns}, reverse=True):
            columns = ", columns" * (least != rate.least)
            claim = f"{rate.what}, {rate.dtype}{columns}: of torch.sum's rate"
            yield Target(claim, least, _reading(rate, least), "x", at_least=True)


TARGETS = (
    *_rates(),
    Target("skewed data: of the rate on normal data", 0.80, _skewed, "x", at_least=True),
    Target(
        "gradients: to a read", 1.3, ratios((tables.GRADIENTS.title,), "update_many_", SUM), "x"
    ),
    Target("gradients: the host's time", 1.0, _hook, " ms"),
    Target("one observation: the host's time over a launch", 1.0, _observation, " us"),
    *(
        Target(f"transformer, {every}: added", limit, added(tables.TRANSFORMER.title, every), "%")
        for every, limit in (("every=1", EVERY_STEP), ("every=10", EVERY_TENTH))
    ),
)
