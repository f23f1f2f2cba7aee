"""Rules about whole tensors: non-finite, exploding, vanishing, suddenly another size, fp8."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hookstats.insight.formats import FORMATS, best_scale, over, under
from hookstats.insight.layers import first_nonfinite, per_tensor
from hookstats.records.alerts import Alert, Severity
from hookstats.records.keys import parse_kind, plain_kind
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least, fraction
from hookstats.rules.steps import Flags, Sites, Steps, in_steps
from hookstats.stats.bins import LogBins
from hookstats.stats.derived import amax, columns_of, l2_norm
from hookstats.stats.later import torch


@dataclass(frozen=True, kw_only=True)
class NonFinite(Rule):
    """NaN or infinite values; the alert is about the first tensor in execution order with any.

    The alert is an error if the tensor has values; if gradients of parameters are not finite, which
    the optimizer takes as they are; and if two steps running have non-finite values. Gradients of
    outputs alone are a warning, and a note where tensors are fp16: a loss scaler makes gradients
    overflow now and then, and skips the step. Arguments that have nothing but zeros and -inf are
    masks, and left out. The alert's value is the number of the tensor's non-finite values.
    """

    name: ClassVar[str] = "non-finite"
    advice: ClassVar[str] = (
        "look at what makes this tensor: a division, a logarithm, an overflow, bad data"
    )
    scope: ClassVar[Literal["site", "kind", "run"]] = "run"

    def suspects(self, steps: Steps) -> Flags:
        return in_steps(steps.nonfinite)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        arguments = np.flatnonzero(history.sites.arguments & ~history.nonfinite)
        first = first_nonfinite(record, arguments.tolist())
        if first is None:
            return
        counts = {"NaN": first.nan, "+inf": first.posinf, "-inf": first.neginf}
        what = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
        says = f"has {what}, first in channel {first.channel}"
        if first.after:
            are = "is" if first.after == 1 else "are"
            says += f"; {first.after} of the tensors after it {are} non-finite, too"
        yield self.alert(
            record,
            list(record).index((first.site, first.kind)),
            says,
            sum(counts.values()),
            first.channel,
            self._severity(record, history, first.kind),
        )

    def _severity(self, record: StepRecord, history: History, kind: str) -> Severity:
        taken = np.array([plain == "param_grad" for plain in history.plain_kinds])
        scaled = any(site.dtype == "float16" for site in record.sites)
        lasting = history.nonfinite_steps >= (3 if scaled else 2)
        if not parse_kind(kind).is_gradient or (history.nonfinite & taken).any() or lasting:
            return "error"
        return "note" if scaled else "warning"


@dataclass(frozen=True, kw_only=True)
class Exploding(Rule):
    """A tensor's rms is far above its own past, and large.

    The rms is more than `growth` times its median over the last steps (32 at most), and above 100
    for values, above 1 for gradients; or it is above `limit`, whatever it was before. If several
    tensors of a kind explode in a step, the alert is about the first in execution order. The
    alert's value is the rms, its channel the one with the greatest magnitude.
    """

    name: ClassVar[str] = "exploding"
    advice: ClassVar[str] = "lower the learning rate, clip gradients, look at the batch"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    growth: float = 100.0
    limit: float = 1e8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "growth", "limit")

    def suspects(self, steps: Steps) -> Flags:
        large = steps.rms > np.where(steps.sites.gradient, 1.0, 100.0)
        return in_steps(large | (steps.rms > self.limit))

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        rms = history.rms
        large = rms > np.where(history.gradient, 1.0, 100.0)
        median = _median(history.past_rms)
        grown = large & (rms > self.growth * median)
        for site, others in _first_of_kind(record, grown | (rms > self.limit)):
            past = (
                f", {rms[site] / median[site]:.3g} times its median over the steps before"
                if median[site] > 0
                else ""
            )
            says = f"has an rms of {rms[site]:.3g}{past}"
            channel = _greatest(record, site)
            says += f", with the greatest magnitude in channel {channel}{_and(others)}"
            yield self.alert(record, site, says, rms[site], channel, "error")


@dataclass(frozen=True, kw_only=True)
class Vanishing(Rule):
    """The gradients of a layer are next to nothing beside those of other layers.

    The l2 norm is less than `ratio` times the greatest norm of the same kind nearer to the loss, or
    zero. Unlike an rms, a norm does not depend on the number of elements in a layer. The rule looks
    at gradients of outputs in backward order, each phase by itself, and at gradients of parameters
    with two or more dimensions in the optimizer's order reversed. The gradient of a bias may be
    zero on principle, before a batch norm or a softmax. The alert's value is the ratio of the two
    norms.
    """

    name: ClassVar[str] = "vanishing"
    advice: ClassVar[str] = "add norms or residuals, try another activation or initialisation"

    ratio: float = 1e-6
    patience: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "ratio")

    def by_site(self, steps: Steps) -> Flags:
        norms = np.where(steps.columns("count") > 0, l2_norm(steps.columns), np.nan)
        found = np.zeros(norms.shape, bool)
        for sites in steps.sites.once(_in_backward_order):
            norm = norms[:, sites]
            found[:, sites] = norm < self.ratio * np.fmax.accumulate(norm, axis=1)
        return found

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        norms = np.where(history.columns("count") > 0, l2_norm(history.columns), np.nan)
        for sites in history.sites.once(_in_backward_order):
            places = np.array(sites, np.int64)
            norm = norms[places]
            largest = np.fmax.accumulate(norm)
            rises = np.append(True, ~(largest[1:] <= largest[:-1]))
            of = np.maximum.accumulate(np.where(rises, np.arange(len(norm)), 0))
            small = np.flatnonzero(norm < self.ratio * largest)
            # As plain numbers, which are faster to put into words than NumPy's.
            for site, peer, size, most in zip(
                places[small].tolist(),
                places[of[small]].tolist(),
                norm[small].tolist(),
                largest[small].tolist(),
                strict=True,
            ):
                name = record.sites[peer].name
                says = (
                    f"has an l2 norm of {size:.3g}, {size / most:.2g} times that of {name!r}"
                    if size
                    else f"is exactly zero, while that of {name!r} has an l2 norm of {most:.3g}"
                )
                yield self.alert(record, site, says, size / most)


@dataclass(frozen=True, kw_only=True)
class SuddenShift(Rule):
    """The rms of a tensor suddenly changes: of values up or down, of parameters' gradients up.

    The rms differs from its median over the last steps by at least `octaves` (factors of two), and
    by `deviations` times its usual deviation: the median absolute deviation of log2(rms), times
    1.4826 as an estimate of the standard deviation (Hampel 1974). The rule needs `steps` earlier
    steps, 32 at most, to know what is usual. Gradients shrink as training converges, and gradients
    of activations leap in sound training runs, too: both are left out. If several
    tensors of a kind shift in a step, the alert is about the first in execution order. The alert's
    value is the signed number of octaves.
    """

    name: ClassVar[str] = "sudden shift"
    advice: ClassVar[str] = "look at the data and the schedule at this step"
    scope: ClassVar[Literal["site", "kind", "run"]] = "kind"

    octaves: float = 4.0
    deviations: float = 10.0
    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "octaves", "deviations")
        at_least(self, 1, "steps")

    def suspects(self, steps: Steps) -> Flags:
        least, most = steps.past.extremes()
        factor = np.exp2(self.octaves)
        return in_steps((steps.rms >= factor * least) | (steps.rms * factor <= most))

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        with np.errstate(divide="ignore"):
            past, now = np.log2(history.past_rms), np.log2(history.rms)
        past[~np.isfinite(past)] = np.nan
        enough = np.isfinite(past).sum(1) >= self.steps
        usual = _median(past)
        spread = 1.4826 * _median(np.abs(past - usual[:, None]))
        shift = now - usual
        least = np.maximum(self.octaves, self.deviations * spread)
        gradient = history.gradient
        parameter = np.array([kind == "param_grad" for _, kind in record], bool)
        up = (shift > least) & (~gradient | parameter)
        down = (shift < -least) & ~gradient
        for site, others in _first_of_kind(record, enough & (up | down)):
            times = f"{2.0 ** shift[site]:.3g} times its median over the steps before"
            says = f"has an rms of {history.rms[site]:.3g}, {times}{_and(others)}"
            yield self.alert(record, site, says, shift[site])


@dataclass(frozen=True, kw_only=True)
class FP8Risk(Rule):
    """Fp8 would lose a share of the tensor's values, too small or too large, at its best scale.

    Values are taken in e4m3 and their gradients in e5m2, as is usual ("FP8 Formats for Deep
    Learning", Micikevicius et al., 2022). The scale of each tensor is the power of two that loses
    the least (`insight.best_scale`). By default only tensors of 16 or 8 bits are looked at: whoever
    trains in 32 bits is not about to use fp8. Gradients of parameters are left out, as no
    multiplication takes them. The alert is a note; its value is the lost share. The rule needs
    LogBins.
    """

    name: ClassVar[str] = "fp8 risk"
    advice: ClassVar[str] = "scale per channel, or keep this tensor in more bits"

    share: float = 0.1
    dtypes: Collection[str] | None = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    """None for all."""
    patience: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(self, "share")

    def suspects(self, steps: Steps) -> Flags:
        types = steps.sites.once(_types)
        told = self.dtypes is None or not types.isdisjoint(self.dtypes)
        return steps.all if told and isinstance(steps.records[0].bins, LogBins) else steps.none

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        if not isinstance(record.bins, LogBins):
            return
        forms = {"input": "fp8_e4m3", "output": "fp8_e4m3", "param": "fp8_e4m3"}
        forms |= {"grad_input": "fp8_e5m2", "grad_output": "fp8_e5m2"}
        by_form: dict[str, list[int]] = {}
        for i, info in enumerate(record.sites):
            form = forms.get(plain_kind(info.kind))
            if form and (self.dtypes is None or info.dtype in self.dtypes):
                by_form.setdefault(form, []).append(i)
        lost = [row for form, sites in by_form.items() for row in self._lost(record, form, sites)]
        for site, form, scale, lost_under, lost_over in sorted(lost):
            yield self.alert(
                record,
                site,
                f"would lose {lost_under + lost_over:.1%} of its values in {form} at the best "
                f"scale, 2**{np.log2(scale):.0f}: {lost_under:.1%} would become zero, "
                f"{lost_over:.1%} would be too large",
                lost_under + lost_over,
                severity="note",
            )

    def _lost(
        self, record: StepRecord, form: str, sites: list[int]
    ) -> Iterator[tuple[int, str, float, float, float]]:
        """The sites that lose too much: index, format, scale, and the shares under and over."""
        tensors = per_tensor(record, sites)
        assert tensors.hist is not None
        # At the best scale no more is lost than where the greatest value just fits.
        amax = tensors.amax.clamp(min=2.0**-126)
        fits = torch.exp2((FORMATS[form].max / amax).log2().floor())
        suspects = (under(tensors.hist, form, fits) >= self.share).nonzero().flatten().tolist()
        if not suspects:
            return
        chosen = [sites[i] for i in suspects]
        hist = per_tensor(record, chosen).hist
        assert hist is not None
        scale = best_scale(hist, form)
        columns = (scale, under(hist, form, scale), over(hist, form, scale))
        for i, *numbers in zip(chosen, *(column.tolist() for column in columns), strict=True):
            if numbers[1] + numbers[2] >= self.share:
                yield i, form, numbers[0], numbers[1], numbers[2]


def _types(sites: Sites) -> frozenset[str]:
    """The dtypes of the sites."""
    return frozenset([site.dtype for site in sites.sites])


def _in_backward_order(sites: Sites) -> list[list[int]]:
    """Gradients of outputs, those of each phase, and of parameters with two or more dimensions."""
    gradients: dict[str | None, list[int]] = {}  # by phase
    for i, kind in enumerate(sites.kinds):
        if kind.plain == "grad_output":
            gradients.setdefault(kind.phase, []).append(i)
    parameters = [
        i for i, s in enumerate(sites.sites) if s.kind == "param_grad" and len(s.shape) > 1
    ]
    return [*gradients.values(), parameters[::-1]]


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


def _first_of_kind(record: StepRecord, found: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
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
