"""Rules about whole tensors: non-finite, exploding, vanishing, too small, suddenly another size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hookstats.insight.layers import first_nonfinite
from hookstats.records.alerts import Alert, Severity
from hookstats.records.keys import parse_kind, plain_kind
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.rules.history import Flags, History, Sites, is_loss
from hookstats.rules.loss_graph import code_shapes
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.stats.derived import amax, columns_of, l2_norm


@dataclass(frozen=True, kw_only=True)
class NonFinite(Rule):
    """NaN or infinite values; the alert is about the first tensor in execution order with any.

    The alert is an error if the tensor has values; if gradients of parameters are not finite, which
    the optimizer takes as they are; and if two steps running have non-finite values. Gradients of
    outputs alone are a warning, and a note where tensors are fp16: a loss scaler makes gradients
    overflow now and then, and skips the step. Arguments that have nothing but zeros and -inf are
    masks, and left out; -inf alone in outputs, while all gradients are finite, is a note: so
    attention masks its logits. Where a loss was not finite before, in a step that was not looked
    at, the alert says so, as weights may have spread what began elsewhere. The alert's value is the
    number of the tensor's non-finite values.
    """

    name: ClassVar[str] = "non-finite"
    advice: ClassVar[str] = (
        "look at what makes this tensor: a division, a logarithm, an overflow, bad data"
    )
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if not history.nonfinite.any():
            return
        sites = history.sites
        masks = np.flatnonzero((sites.arguments | sites.attention) & ~history.nonfinite)
        first = first_nonfinite(record, masks.tolist())
        if first is None:
            return
        counts = {"NaN": first.nan, "+inf": first.posinf, "-inf": first.neginf}
        what = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
        says = f"has {what}, first in channel {first.channel}"
        if first.after:
            are = "is" if first.after == 1 else "are"
            says += f"; {first.after} of the tensors after it {are} non-finite, too"
        site = history.sites.at[first.site, first.kind]
        severity = self._severity(record, history, first.kind)
        helps = self._helps(record, history, site)
        if history.nonfinite_steps == 1 and _lost_before(history):
            says += "; a loss was not finite before, in a step that was not looked at"
            helps = "this need not be where it began: see it with every=1, from a checkpoint before"
        yield self.alert(
            record,
            site,
            says,
            sum(counts.values()),
            first.channel,
            severity,
            advice=helps,
        )

    def _helps(self, record: StepRecord, history: History, site: int) -> str:
        """What helps, by what the first tensor is."""
        setup, kind = history.setup, history.plain_kinds[site]
        half = [w for w in setup.weights if w.dtype == "float16"]
        groups = {w.group for w in half if w.group is not None}
        if any(0 < setup.groups[i].epsilon < _LEAST for i in groups):
            return "keep weights in fp32, or give the optimizer an eps of 1e-4: 1e-8 is 0 in fp16"
        if kind == "input" and record.sites[site].name == "":
            return "look at the data of this step: values that are missing, a deviation of zero"
        is_half = any(one.dtype == "float16" for one in record.sites)
        if history.gradient[site]:
            return (
                "a loss scaler lowers its scale by itself; where it goes on and on, use bf16"
                if is_half
                else "look for an infinite derivative: a square root or a norm of 0, the logarithm "
                "of 0, where() around a branch that is not finite"
            )
        if record.sites[site].dtype == "float16" and not history.columns("nan")[site]:
            return "use bf16, or scale what enters: fp16 ends at 65504"
        return ""

    def _severity(self, record: StepRecord, history: History, kind: str) -> Severity:
        column, bad = history.columns, history.nonfinite
        only_masks = not (column("nan") + column("posinf"))[bad].any()
        if only_masks and not (bad & history.gradient).any():
            return "note"
        scaled = any(site.dtype == "float16" for site in record.sites)
        lasting = history.nonfinite_steps >= (3 if scaled else 2)
        taken = bad & history.sites.of_kind("param_grad")
        if not parse_kind(kind).is_gradient or taken.any() or lasting:
            return "error"
        return "note" if scaled else "warning"


@dataclass(frozen=True, kw_only=True)
class Exploding(Rule):
    """A tensor's rms is far above its own past, and large.

    The rms is more than `growth` times its median over the last steps (32 at most), and above 100
    for values, above 1 for gradients of parameters, of which two steps in a row must have it; or
    values are above `limit`, whatever they were before; or above 100 and `slow` times their rms in
    the first four steps, as values that feed on themselves. In the very first step there is a
    warning if the rms of what a layer with weights gives is above `first`. Where attention is
    recorded, there is a note if the largest logits of a layer's queries are above `logits` on
    average, and 8 times what they were in the first four steps: logits that grow so end in
    divergence (Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023), and
    100 is where they are clipped (Kimi Team, "Kimi K2", 2025). Gradients of activations
    leap in sound training runs and are left out: what they do to weights shows in the weights'
    gradients. If several tensors of a kind explode in a step, the alert is about the first in
    execution order. The alert's value is the rms, its channel the one with the greatest magnitude.
    """

    name: ClassVar[str] = "exploding"
    advice: ClassVar[str] = "lower the learning rate, clip gradients, look at the batch"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    growth: float = at_least(1, 100.0)
    limit: float = at_least(1, 1e8)
    slow: float = at_least(1, 1e4)
    first: float = at_least(1, 30.0)
    logits: float = at_least(1, 100.0)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if history.pushed == 1:
            yield from self._at_first(record, history)
        yield from self._of_attention(record, history)
        rms, taken = history.rms, history.sites.of_kind("param_grad")
        values = ~history.gradient & ~history.sites.of_kind("input")
        suspects = (values & (rms > 100)) | (taken & (rms > 1))
        if not suspects.any():
            return
        median = _median(history.past_rms)
        last = np.where(taken, history.past_rms[:, -1], rms)
        grown = suspects & (np.minimum(rms, last) > self.growth * median)
        start = history.start_rms
        slow = values & (rms > 100) & (start > 0) & (rms > self.slow * start)
        for site, others in _first_of_kind(record, grown | slow | (values & (rms > self.limit))):
            past = (
                f", {rms[site] / median[site]:.3g} times its median over the steps before"
                if median[site] > 0
                else ""
            )
            if slow[site] and not grown[site]:
                past = f", {rms[site] / start[site]:.3g} times what it began with"
            says = f"has an rms of {rms[site]:.3g}{past}"
            channel = _greatest(record, site)
            says += f", with the greatest magnitude in channel {channel}{_and(others)}"
            yield self.alert(record, site, says, rms[site], channel, "error")

    def _of_attention(self, record: StepRecord, history: History) -> Iterator[Alert]:
        """The first layer whose attention logits have grown far beyond where they began."""
        logits = history.sites.once(_logits)
        if not logits.any():
            return
        start, mean = history.start_rms, history.columns("mean")
        grown = logits & (mean > self.logits) & (mean > 8 * start)
        for site, others in _first_of_kind(record, grown):
            head = _greatest(record, site)
            times = mean[site] / start[site]
            says = f"is {mean[site]:.3g}, {times:.3g} times what it began with, the greatest in "
            says += f"head {head}{_and(others)}: of such logits, one key has all weight"
            helps = "normalise queries and keys, clip their products, lower the learning rate"
            yield self.alert(record, site, says, mean[site], head, "note", advice=helps)

    def _at_first(self, record: StepRecord, history: History) -> Iterator[Alert]:
        """The first layer whose first outputs are large."""
        for site in np.flatnonzero(history.rms > self.first).tolist():
            type_ = history.type_of(site)
            if (_is_layer(type_) or "Embedding" in type_) and history.plain_kinds[site] == "output":
                says = f"has an rms of {history.rms[site]:.3g} in the first step, where 1 is usual"
                helps = "scale what goes into this layer, such as times and positions"
                yield self.alert(record, site, says, history.rms[site], advice=helps)
                return


@dataclass(frozen=True, kw_only=True)
class Vanishing(Rule):
    """The gradients of a layer are next to nothing beside those of other layers.

    The l2 norm is zero, or less than `ratio` times the greatest norm of the same kind nearer to the
    loss, as are those of all layers further from it: a gradient that reaches these has not vanished
    on its way, as where attention hardly depends on its queries. Unlike an rms, a norm does not
    depend on the number of elements in a layer. The rule looks at gradients of outputs in backward
    order, each phase by itself, and at gradients of parameters with two or more dimensions in the
    optimizer's order reversed. Those of probabilities that the loss takes as they are count for
    nothing: the derivative of the sigmoid or softmax before it cancels that of a logarithm, however
    large. The gradient of a bias may be zero on principle, before a batch norm or a softmax; and a
    gradient that grows by half within eight steps is about to leave zero, as in a branch whose gain
    begins at zero. The alert's value is the ratio of the two norms.
    """

    name: ClassVar[str] = "vanishing"
    advice: ClassVar[str] = "add norms or residuals, try another activation or initialisation"

    ratio: float = fraction(1e-6)
    patience: int = 10

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        norms = np.where(history.columns("count") > 0, l2_norm(history.columns), np.nan)
        for sites in history.sites.once(_in_backward_order):
            places = np.array(sites, np.int64)
            norm = norms[places]
            squashed = [history.type_of(site) in _SQUASHES for site in sites]
            largest = np.fmax.accumulate(
                np.where(np.logical_and.accumulate(squashed), np.nan, norm)
            )
            leaves = history.rms[places] > 1.5 * history.past_rms[places, -8]
            further = np.fmax.accumulate(norm[::-1])[::-1]
            vanish = (norm == 0) | (further < self.ratio * largest)
            small = np.flatnonzero((norm < self.ratio * largest) & vanish & ~leaves)
            if not len(small):
                continue
            rises = np.append(True, ~(largest[1:] <= largest[:-1]))
            of = np.maximum.accumulate(np.where(rises, np.arange(len(norm)), 0))
            for i in small.tolist():
                name, size, most = record.sites[places[of[i]]].name, norm[i], largest[i]
                yield self.alert(
                    record,
                    int(places[i]),
                    f"has an l2 norm of {size:.3g}, {size / most:.2g} times that of {name!r}"
                    if size
                    else f"is exactly zero, while that of {name!r} has an l2 norm of {most:.3g}",
                    size / most,
                    advice=""
                    if size
                    else "look for a constant or a detached function between it and the loss",
                )


@dataclass(frozen=True, kw_only=True)
class SuddenShift(Rule):
    """The rms of a tensor suddenly changes, and stays: of values up or down, of gradients of
    parameters up.

    In this step and in the one before, the rms lies beyond all values of the last steps, by
    `octaves` (factors of two) and by `spans` times what lies between the least and the greatest of
    these, in octaves, too. The rule needs `steps` earlier steps, 30 at most, to know what is usual,
    which span eight times the way over which the change came: else it need not be sudden. Where a
    loss falls as it never did, it is progress. Gradients shrink as training converges, and
    gradients of activations leap in sound training runs, too: both are left out, and so are
    integers, as numbers of tokens. If several tensors of a kind shift in a step, the alert is about
    the first in execution order. The alert's value is the signed number of octaves from the median.
    """

    name: ClassVar[str] = "sudden shift"
    advice: ClassVar[str] = "look at the data and the schedule at this step"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    octaves: float = at_least(0, 3.0)
    spans: float = at_least(0, 1.5)
    steps: int = at_least(1, 20)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if _is_far(history.past_steps) or _is_progress(history):
            return
        rms, factor = history.rms, np.exp2(self.octaves)
        last, before = history.past_rms[:, -1], history.past_rms[:, :-1]
        most, least = np.fmax.reduce(before, 1), np.fmin.reduce(before, 1)
        factor = np.maximum(factor, (most / least) ** self.spans)
        up = np.minimum(rms, last) >= factor * most
        up &= ~history.gradient | history.sites.of_kind("param_grad")
        down = (np.maximum(rms, last) * factor <= least) & ~history.gradient
        found = (up | down) & (np.isfinite(np.log2(before)).sum(1) >= self.steps)
        # Heads and routers may learn what to look at within a few steps.
        found &= ~(history.sites.attention | history.sites.choices)
        found &= history.sites.once(_has_order)
        for site, others in _first_of_kind(record, found):
            usual = np.nanmedian(before[site])
            times = f"{rms[site] / usual:.3g} times its median over the steps before"
            says = f"has an rms of {rms[site]:.3g}, {times}{_and(others)}"
            octaves = float(np.log2(rms[site] / usual))
            past, helps = history.inputs, _helps(history)
            if past.site is not None and found[past.site]:
                helps = "look at the batch of this step"
                grown = past.grown if past.site == site else None
                says += "" if grown is None else f"; channel {grown.channel} has {grown.rms:.3g}"
            yield self.alert(record, site, says, octaves, since=history.before, advice=helps)


@dataclass(frozen=True, kw_only=True)
class Fading(Rule):
    """What a layer gives fades to next to nothing.

    The rms of the output of a layer with weights is below `share` of the greatest in its first four
    steps. There is a warning if all layers whose outputs a code is drawn from have faded, those
    that a logged loss takes the exponential of, and others as wide: then the posterior of a
    variational autoencoder has collapsed ("Generating sentences from a continuous space", Bowman et
    al., 2016). There is a note about the first of other layers, but for the last one and those
    before a norm. The alert's value is the rms by that at the start.
    """

    name: ClassVar[str] = "fading"
    advice: ClassVar[str] = "look at what pulls it to zero: weight decay, a penalty in the loss"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    share: float = fraction(1 / 16)
    patience: int = 10

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        outputs = history.sites.of_kind("output")
        faded = outputs & (history.rms > 0) & (history.rms < self.share * history.start_rms)
        if not faded.any():
            return
        layers = [i for i in np.flatnonzero(outputs).tolist() if _is_layer(history.type_of(i))]
        widths = {shape for graph in history.graphs.values() for shape in code_shapes(graph)}
        codes = [i for i in layers if record.sites[i].shape[1:] in widths]
        collapsed = bool(codes) and bool(faded[codes].all())
        found = codes if collapsed else [i for i in layers if faded[i] and not _is_free(history, i)]
        if not found:
            return
        ratio = history.rms[found[0]] / history.start_rms[found[0]]
        says = f"has faded to {ratio:.2g} times its rms at the start"
        if collapsed:
            says += ", like all that a code is drawn from: the posterior has collapsed"
            helps = "let the weight of the divergence grow from zero, or weaken the decoder"
            yield self.alert(record, found[0], says, ratio, advice=helps)
        else:
            yield self.alert(record, found[0], says + _and(len(found) - 1), ratio, severity="note")


@dataclass(frozen=True, kw_only=True)
class Underflow(Rule):
    """Gradients in fp16 are so small that they lose their digits, or become zero.

    The rms of a gradient of an output is below `least`; the smallest number of fp16 with all its
    digits is 2**-14, the smallest of all 2**-24 ("Mixed Precision Training", Micikevicius et al.,
    2018, which has the loss scaled therefore). The alert is about the first tensor in backward
    order; its value is the rms.
    """

    name: ClassVar[str] = "underflow"
    advice: ClassVar[str] = "use torch.amp.GradScaler, or bf16"
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    least: float = at_least(0, 2.0**-20)
    patience: int = 3

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        small = history.rms < self.least
        for i in np.flatnonzero(small).tolist():
            if history.plain_kinds[i] == "grad_output" and record.sites[i].dtype == "float16":
                says = f"has an rms of {history.rms[i]:.2g}, too small for the digits of fp16"
                yield self.alert(record, i, says, history.rms[i])
                return


def _is_layer(type_: str) -> bool:
    """Whether modules of a type multiply what enters by weights."""
    return bool(re.search("Linear|Conv", type_))


def _is_free(history: History, site: int) -> bool:
    """Whether the size of an output says nothing: a norm follows, or it is the last."""
    return site == history.last_output or "Norm" in history.type_of(site + 1)


_LEAST = 2.0**-25
"""What rounds to zero in fp16, from here on downwards."""
_SQUASHES = ("Sigmoid", "Softmax", "Softmax2d", "Tanh")
"""The types of modules whose outputs have bounds."""


def _has_order(sites: Sites) -> Flags:
    """bool [S]: which tensors have sizes: numbers of tokens have none."""
    return np.array(["int" not in site.dtype for site in sites.sites], bool)


def _is_far(steps: list[int]) -> bool:
    """Whether the way to the last of these steps is long beside the way that all others span.

    A trend goes on in steps that are not recorded, and steps recorded close to each other at the
    beginning do not show how far it goes in many.
    """
    return len(steps) > 2 and 8 * (steps[-1] - steps[-2]) > steps[-2] - steps[0]


def _lost_before(history: History) -> bool:
    """Whether a loss was not finite in an earlier step, too, whose weights are those of now."""
    losses = (past[-2:] for name, past in history.scalars.items() if is_loss(name))
    return any(len(last) == 2 and not np.isfinite(last).any() for last in losses)


def _is_progress(history: History) -> bool:
    """Whether a loss has fallen farther in the last two steps than it ranged in the steps of the
    window before: where a plateau ends, gradients and outputs grow with what is learnt."""
    if len(history.past_steps) < 3:
        return False
    early, late = (history.step - history.past_steps[i] + 1 for i in (0, -2))
    for name in filter(is_loss, history.scalars):
        losses = np.array(history.scalars[name][-early:])
        before, last = losses[:-late], losses[-3:]
        if len(before) and before.min() - np.median(last) > np.ptp(before):
            return True
    return False


def _helps(history: History) -> str:
    """What helps against a shift: of outputs alone, the weights have changed."""
    if history.inputs.far or history.inputs.grown or history.inputs.site is None:
        return ""
    return (
        "its input is as before: look at what changed the weights, such as a checkpoint, "
        "a reset layer or the optimizer's step"
    )


def _in_backward_order(sites: Sites) -> list[list[int]]:
    """Gradients of outputs, those of each phase, and of parameters with two or more dimensions."""
    gradients: dict[str | None, list[int]] = {}  # by phase
    for i, kind in enumerate(sites.kinds):
        if kind.plain == "grad_output":
            gradients.setdefault(kind.phase, []).append(i)
    parameters = [
        i
        for i, s in enumerate(sites.sites)
        if s.kind == "param_grad" and sum(n > 1 for n in s.shape) > 1
    ]
    return [order for order in (*gradients.values(), parameters[::-1]) if order]


def _median(rows: Float64) -> Float64:
    """The median of the numbers in each row, without NaNs; NaN where a row has nothing else."""
    ordered = np.sort(rows, 1)  # NaN comes last
    count = (~np.isnan(ordered)).sum(1)
    row = np.arange(len(rows))
    middle: Float64 = (
        ordered[row, np.maximum(count - 1, 0) // 2]
        + ordered[row, np.minimum(count // 2, rows.shape[1] - 1)]
    ) / 2
    return middle


def _logits(sites: Sites) -> Flags:
    """bool [S]: the largest logits of attention."""
    largest = [kind.path == ".largest_logit" for kind in sites.kinds]
    found: Flags = sites.attention & np.array(largest, bool)
    return found


def _first_of_kind(record: StepRecord, found: Flags) -> Iterator[tuple[int, int]]:
    """The first site found of each plain kind, and how many more were found."""
    by_kind: dict[str, list[int]] = {}
    for site in np.flatnonzero(found).tolist():
        by_kind.setdefault(plain_kind(record.sites[site].kind), []).append(site)
    for sites in by_kind.values():
        yield sites[0], len(sites) - 1


def _and(others: int) -> str:
    if not others:
        return ""
    tensors = "tensor" if others == 1 else "tensors"
    return f"; the same is true of {others} more {tensors} of this kind"


def _greatest(record: StepRecord, site: int) -> int:
    """The channel of the site with the greatest magnitude."""
    rows = slice(*record.offsets[site : site + 2])
    return int(amax(columns_of(record.moments[rows], record.tallies[rows])).argmax())
