"""A rule about attention that looks at one token each, or at all alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.record import StepRecord
from hookstats.rules.history import History, Sites
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.stats.derived import columns_of, rms

_JOINT = re.compile(r"(?:^|\.)(?:c_attn|qkv|qkv_proj|query_key_value|Wqkv)$")
_QUERY = re.compile(r"(?<=\.)(q_proj|query|q|wq|to_q)$")
_KEYS = {"q_proj": "k_proj", "query": "key", "q": "k", "wq": "wk", "to_q": "to_k"}


@dataclass(frozen=True, kw_only=True)
class Attention(Rule):
    """Attention logits are so large that each token looks at one other, and no gradient passes.

    The deviation of logits is about the rms of the queries times that of the keys, as the sum over
    a head's d products is divided by sqrt(d). There is an alert above `most`: a softmax of such
    logits is one-hot (logits that grow so end in divergence: Dehghani et al., "Scaling Vision
    Transformers to 22 Billion Parameters", 2023; Wortsman et al., "Small-scale proxies for
    large-scale Transformer training instabilities", 2023). Queries and keys are found by the names
    of their layers: q_proj and k_proj, query and key, or the first two thirds of c_attn, qkv and
    the like. Where the softmax is a module, its output is looked at: at `sharp` of its greatest
    concentration or more. The rule looks at the first `first` steps: later, attention may have
    learned to look at one token. The alert's value is the deviation, or the concentration.
    """

    name: ClassVar[str] = "attention"
    advice: ClassVar[str] = "normalise queries and keys, lower the learning rate"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    most: float = 25.0
    sharp: float = 0.9
    first: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "most")
        fraction(self, "sharp")

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > self.first:
            return
        for query, key in history.sites.once(_pairs):
            logits = _deviation(record, history, query, key)
            if logits > self.most:
                says = (
                    f"gives attention logits a deviation of about {logits:.3g}: each token looks "
                    "at one other alone"
                )
                yield self.alert(record, query, says, logits)
                return
        if history.setup is None:
            return
        for i, site in enumerate(record.sites):
            if history.setup.modules.get(site.name) != "Softmax" or site.kind != "output":
                continue
            share = float(history.rms[i]) ** 2 * site.shape[-1] if site.shape else 0.0
            if len(site.shape) >= 3 and share >= self.sharp:
                says = f"is nearly one-hot: concentrated to {share:.0%} of the utmost"
                yield self.alert(record, i, says, share)
                return


def _pairs(sites: Sites) -> tuple[tuple[int, int], ...]:
    """The outputs with queries and keys; the same site twice where it has both."""
    at = {site.name: i for i, site in enumerate(sites.sites) if site.kind == "output"}
    found = []
    for name, i in at.items():
        query = _QUERY.search(name)
        if _JOINT.search(name):
            found.append((i, i))
        elif query is not None:
            key = name[: query.start()] + _KEYS[query[1]]
            if key in at:
                found.append((i, at[key]))
    return tuple(found)


def _deviation(record: StepRecord, history: History, query: int, key: int) -> float:
    if query != key:
        return float(history.rms[query] * history.rms[key])
    rows = np.arange(*record.offsets[query : query + 2])
    if len(rows) < 3:
        return 0.0
    squares = np.square(rms(columns_of(record.moments[rows], record.tallies[rows])))
    third = len(rows) // 3
    return float(np.sqrt(squares[:third].mean() * squares[third : 2 * third].mean()))
