"""Rules that compare layers with each other: signal through depth, and what is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.records.alerts import Alert
from hookstats.records.keys import plain_kind
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.rules.beginnings import Place, heads_of, numbered
from hookstats.rules.history import History, Sites
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.rules.setup import Setup
from hookstats.stats.derived import std

_FLOOR = 2.0**-60
"""What stands for an rms of zero."""
_ROUNDING = 1e-5
"""By how much of its rms a constant may deviate, since sums of fp32 are rounded."""
_COMPARED = ("output", "grad_output", "param_grad")


def _groups(of: Sites) -> tuple[tuple[int, ...], ...]:
    """The sites of each role and kind, in the order of the model: three or more, of one shape."""
    sites = of.sites
    found: dict[tuple[Place, str, int, int], list[int]] = {}
    for i, site in enumerate(sites):
        if plain_kind(site.kind) in _COMPARED:
            if site.kind == "param_grad" and len(site.shape) < 2:  # those of biases may be tiny
                continue
            for _, place in numbered(site.name):
                key = place, site.kind, site.channels, len(site.shape)
                found.setdefault(key, []).append(i)
    return tuple(
        tuple(sorted(group, key=lambda i: _numbers(sites[i].name)))
        for group in found.values()
        if len(group) >= 3
    )


def _of_one_type(history: History) -> Iterator[tuple[int, ...]]:
    """The `_groups`, of one type of modules each: those of a Sequential need not have the same."""
    for group in history.sites.once(_groups):
        by_type: dict[str, list[int]] = {}
        for site in group:
            by_type.setdefault(history.type_of(site), []).append(site)
        yield from (tuple(sites) for sites in by_type.values() if len(sites) >= 3)


def _numbers(name: str) -> tuple[int, ...]:
    digits = "".join(c if c.isdigit() else " " for c in name)
    return tuple(map(int, digits.split()))


def _sizes(history: History, group: tuple[int, ...]) -> Float64:
    """log2 of the rms of each; NaN where a tensor has no finite values."""
    out: Float64 = np.log2(np.maximum(history.rms[list(group)], _FLOOR))
    return out


@dataclass(frozen=True, kw_only=True)
class Depth(Rule):
    """Activations or gradients grow or shrink from each layer to the next.

    Over four or more peers, of one type of module, width, and name but for one number
    ("h.0.attn.c_attn" and "h.1.attn.c_attn"), the rms changes in one direction from each to the
    next, by `step` octaves or more, and by `growth` octaves in all if it grows, `decay` if it
    shrinks, in the direction of the signal: forwards for outputs, backwards for gradients. A signal
    that keeps its size is what initialisations aim at (He et al., 2015), and norms give. The rule
    looks at the first three recorded steps. The alert is about the last tensor in that direction;
    its value is the signed number of octaves from the first to the last.
    """

    name: ClassVar[str] = "depth"
    advice: ClassVar[str] = "scale residual branches, add norms"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    growth: float = at_least(0, 2.5)
    decay: float = at_least(0, 10.0)
    step: float = at_least(0, 0.5)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > 3:
            return
        for group in _of_one_type(history):
            kind = plain_kind(record.sites[group[0]].kind)
            if kind == "param_grad" or len(group) < 4:
                continue
            way = group if kind == "output" else group[::-1]
            changes = np.diff(_sizes(history, way))
            total = float(changes.sum())
            grows = bool((changes >= self.step).all()) and total >= self._most(kind)
            if grows or ((changes <= -self.step).all() and total <= -self.decay):
                first, last = record.sites[way[0]].name, way[-1]
                word = "grows" if total > 0 else "shrinks"
                says = (
                    f"has {2.0**total:.3g} times the rms of {first!r}: it {word} from each layer "
                    "to the next"
                )
                yield self.alert(record, last, says, total)

    def _most(self, kind: str) -> float:
        """The octaves by which a kind may grow: gradients grow in sound networks, too."""
        return self.growth if kind == "output" else 1.6 * self.growth


@dataclass(frozen=True, kw_only=True)
class LinearRange(Rule):
    """What enters an activation is so small that the activation is linear.

    Near zero, smooth activations are straight lines: below an rms of `least` what they bend is
    a few per cent of what they give, and layers with nothing else between them are one layer. So it
    is where values have lost their size on the way, as weights that count on a norm before them
    have no norm; initialisations aim at a size of one (Glorot and Bengio, 2010; He et al., 2015).
    What enters is the output before the activation, in execution order, if it has as many values
    and the activation's output is as small: it may be but a part, as of a low-rank adapter.
    The rule looks at the first ten recorded steps. The alert's value is the rms.
    """

    name: ClassVar[str] = "linear range"
    advice: ClassVar[str] = "add norms, or initialise for a size of one"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    least: float = at_least(0, 0.03)
    patience: int = 3

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed > 10:
            return
        counts, spread = history.columns("count"), std(history.columns)
        smooth = [site for type in _SMOOTH for site in history.outputs_of.get(type, ())]
        for site in sorted(smooth):
            before = site - 1
            if before < 0 or history.plain_kinds[before] != "output":
                continue
            rms = float(history.rms[before])
            entered = counts[before] == counts[site] and spread[site] <= 1.5 * rms
            if entered and 0 < rms < self.least:
                says = f"is linear in its input, whose rms is only {rms:.2g}"
                yield self.alert(record, site, says, rms)
                return


_SMOOTH = ("GELU", "SiLU", "Tanh", "ELU", "Softplus", "Mish", "NewGELUActivation")


@dataclass(frozen=True, kw_only=True)
class Collapse(Rule):
    """The outputs of a layer, and of all after it, hardly depend on the sample.

    Within its channels, the output deviates from the channel's mean by `share` of its rms or less:
    what enters has been lost on the way, as in deep networks of sigmoids (Glorot and Bengio, 2010),
    and biases are left. The rule looks at outputs of `channels` channels or more, but the last one
    and those of heads, which no later weight takes, as these may begin small; a branch whose output
    is nearly constant beside one that is not takes nothing away, and one that is constant to
    rounding takes the same for each sample, as a code that all samples share. The alert is about
    the first in execution order; its value is the share.
    """

    name: ClassVar[str] = "collapse"
    advice: ClassVar[str] = "try another activation, add norms"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    share: float = fraction(0.005)
    channels: int = at_least(1, 8)
    patience: int = 10

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        counts = history.columns("count")
        with np.errstate(invalid="ignore", divide="ignore"):
            share = history.deviations(record) / history.rms
        many = (np.diff(record.offsets) >= self.channels) & (counts >= 4 * np.diff(record.offsets))
        told = many & history.sites.of_kind("output")
        if history.last_output is not None:
            told[history.last_output] = False
        places = np.flatnonzero(told)
        depends = np.flatnonzero(~(share[places] <= self.share))
        first = int(depends[-1]) + 1 if len(depends) else 0
        if first < len(places):
            names = [record.sites[place].name for place in places[first:]]
            first += _of_heads(names, history.setup)
        if first < len(places) and share[places[first]] > _ROUNDING:
            i = int(places[first])
            says = f"hardly depends on the sample: it deviates by {share[i]:.2%} of its rms"
            if first + 1 < len(places):
                says += ", and so do all outputs after it but the last"
            yield self.alert(record, i, says, share[i])


def _of_heads(modules: Sequence[str], setup: Setup) -> int:
    """How many of these modules, from the first, are heads or activations behind a head."""
    heads, weights = heads_of(setup), {weight.name for weight in setup.weights}
    for many, name in enumerate(modules):
        is_behind = many > 0 and f"{name}.weight" not in weights
        if not (is_behind or f"{name}.weight" in heads):
            return many
    return len(modules)
