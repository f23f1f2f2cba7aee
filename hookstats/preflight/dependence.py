"""What outputs depend on: the sample itself, no other one, no later token, the order of tokens.

Each check calls the model in eval mode, without gradients, for the batch and for a batch that
differs in one respect, with the same random numbers. Parameters that are zero throughout get small
values meanwhile: a branch that begins switched off would hide what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hookstats.preflight.events import (
    Event,
    Part,
    first_constant,
    first_difference,
    first_nonfinite,
    recorded,
)
from hookstats.preflight.finding import Finding, Line, skipped
from hookstats.preflight.given import Given, floats
from hookstats.preflight.untouched import Snapshot, reseed
from hookstats.records.keys import label

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_NOISE = 30
"""How many units in the last place two runs of the same computation may differ by."""
_NOISE_OF_ORDER = 300
"""The same where sums are taken in another order."""
_ALIKE = 1e-5
"""Below this share of the largest value, outputs of different samples are alike."""
_SEED = 0

SEES_NONE = "no output depends on later tokens"
SAMPLES, INPUT, FUTURE, ORDER = "samples", "input", "future tokens", "token order"


def of_outputs(
    model: nn.Module, given: Given, snapshot: Snapshot, *, causal: bool | None, attends: bool
) -> list[Line]:
    """The checks of what outputs depend on.

    causal: whether a token may see no later one; None if that is not known, and targets that are
    the next tokens say so, see `is_next_token`. attends: whether the model has attention.
    """
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
    _fill_zeros(model)
    try:
        return _Checks(model, given, snapshot).lines(causal, attends)
    finally:
        snapshot.restore()
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def _fill_zeros(model: nn.Module) -> None:
    generator = torch.Generator("cpu").manual_seed(_SEED)
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.any():
            noise = 0.02 * torch.randn(parameter.shape, generator=generator, device="cpu")
            with suppress(RuntimeError):  # an expanded or read-only memory
                parameter.copy_(noise)


@dataclass
class _Run:
    """One call of the model: the tensors in its output, and what went through its modules."""

    output: Sequence[Tensor]
    events: list[Event]


class _Checks:
    def __init__(self, model: nn.Module, given: Given, snapshot: Snapshot) -> None:
        self._model = model
        self._given = given
        self._snapshot = snapshot

    def lines(self, causal: bool | None, attends: bool) -> list[Line]:
        given = self._given
        if given.samples < 1:
            why = "batch_dim is None" if given.batch_dim is None else "the batch has no tensor"
            return [skipped(name, why) for name in (SAMPLES, INPUT, FUTURE, ORDER)]
        chosen = given.samples // 2

        def sample(tensor: Tensor) -> Tensor | None:
            dim = given.sample_dim(tensor)
            return None if dim is None else tensor.select(dim, chosen)

        self._base = self._run(given, sample)
        if any(one.isnan().any() for one in self._base.output):
            where = first_nonfinite(self._base.events) or ""
            finding = Finding(
                *(INPUT, "error", where, f"the output of {label(where)!r} is the first with NaN"),
                "look at what makes this tensor, and at the batch: a division, a logarithm, NaN",
            )
            return [Line(INPUT, "the output has NaN", (finding,))]
        return [
            self._samples(sample, chosen),
            self._input(),
            self._future(causal),
            self._order(attends),
        ]

    def _run(self, given: Given, part: Part) -> _Run:
        reseed()
        self._snapshot.reset()
        for module in self._model.modules():
            module.training = False
        with torch.no_grad():
            events, output = recorded(self._model, part, lambda: given.call(self._model))
        return _Run([one.clone() for one in floats(output)], events)

    def _samples(self, sample: Part, chosen: int) -> Line:
        given = self._given
        if given.samples < 2:
            return skipped(SAMPLES, "a batch of one sample")

        def others_replaced(tensor: Tensor) -> Tensor:
            dim = given.sample_dim(tensor)
            if dim is None:
                return tensor
            places = torch.full((given.samples,), chosen, device=tensor.device)
            return tensor.index_select(dim, places)

        other = self._run(given.changed(others_replaced), sample)
        pairs = [
            (one.select(dim, chosen), two.select(dim, chosen))
            for one, two in zip(self._base.output, other.output, strict=False)
            if one.shape == two.shape
            and (dim := given.sample_dim(one)) is not None
            and one.shape != (given.samples, given.samples)  # similarities of samples
        ]
        if not pairs:
            return skipped(SAMPLES, f"no output has {given.samples} samples in dimension 0")
        most = max(_difference(one, two) for one, two in pairs)
        tolerance = max(_noise(one) for one, _ in pairs)
        if most <= tolerance:
            return Line(SAMPLES, f"each of {given.samples} has a different output (eval mode)")
        where = first_difference(self._base.events, other.events, tolerance)
        module = dict(self._model.named_modules()).get(where or "")
        told = "" if where is None else f" in {label(where)!r}"
        if isinstance(module, _BATCH_NORMS):
            text = f"mixed by {label(where or '')!r}, which keeps no running statistics"
            return Line(SAMPLES, text)
        message = (
            f"samples leak into each other{told}: the output of sample {chosen} changes by "
            f"{most:.2g} of its size when the other samples change"
        )
        return Line(SAMPLES, f"mixed{told}", (_leak(where, message, module),))

    def _input(self) -> Line:
        given, base = self._given, self._base
        if given.samples < 2:
            return skipped(INPUT, "a batch of one sample")
        differ = [
            one
            for one in given.tensors()
            if (dim := given.sample_dim(one)) is not None and not _alike(one, dim, 0.0)
        ]
        if not differ:
            return skipped(INPUT, "all samples of the batch are equal")
        outputs = [(one, dim) for one in base.output if (dim := given.sample_dim(one)) is not None]
        if not outputs:
            return skipped(INPUT, f"no output has {given.samples} samples in dimension 0")
        if not all(_alike(one, dim, _ALIKE) for one, dim in outputs):
            return Line(INPUT, "outputs of samples differ")
        where = first_constant(base.events, _ALIKE)
        told = "" if where is None else f" from {label(where)!r} on"
        finding = Finding(
            *(INPUT, "error", where or ""),
            f"the output does not depend on the input: all samples have the same{told}",
            "look for dead or saturated units, a softmax over one value, weights or inputs that "
            "are far too small, a value that is overwritten",
        )
        return Line(INPUT, f"the same output for all samples{told}", (finding,))

    def _future(self, causal: bool | None) -> Line:
        given = self._given
        tokens = given.tokens
        self._sees_later: bool | None = None
        if given.times < 4 or (tokens is None and not causal):
            return skipped(FUTURE, "no sequence of tokens")
        cut = given.times // 2

        def before(tensor: Tensor) -> Tensor | None:
            dim = given.time_dim(tensor)
            return None if dim is None else tensor.narrow(dim, 0, cut)

        def later_replaced(tensor: Tensor) -> Tensor:
            dim = given.time_dim(tensor)
            if dim is None:
                return tensor
            return _with_other_end(tensor, dim, 1 - dim, cut)

        one = self._run(given, before)
        other = self._run(given.changed(later_replaced), before)
        pairs = [
            (early, late)
            for a, b in zip(one.output, other.output, strict=False)
            if a.shape == b.shape
            and (early := before(a)) is not None
            and (late := before(b)) is not None
        ]
        if not pairs:
            return skipped(FUTURE, f"no output has {given.times} tokens")
        most = max(_difference(early, late) for early, late in pairs)
        tolerance = max(_noise(early) for early, _ in pairs)
        self._sees_later = most > tolerance
        if not self._sees_later:
            return Line(FUTURE, SEES_NONE)
        if not causal:
            return Line(FUTURE, "outputs see later tokens; targets are not the next ones")
        where = first_difference(one.events, other.events, tolerance)
        told = "" if where is None else f" in {label(where)!r}"
        finding = Finding(
            *(FUTURE, "error", where or ""),
            f"future tokens leak{told}: outputs of the first {cut} tokens change by {most:.2g} of "
            "their size when later tokens change",
            "give attention a causal mask (True above the diagonal is masked in "
            "nn.MultiheadAttention, and seen in scaled_dot_product_attention), pad convolutions on "
            "the left, shift targets",
        )
        return Line(FUTURE, f"later tokens are seen{told}", (finding,))

    def _order(self, attends: bool) -> Line:
        given, base = self._given, self._base
        tokens = given.tokens
        if tokens is None or given.times < 6:
            return skipped(ORDER, "no sequence of tokens")
        if not attends:
            return skipped(ORDER, "a model without attention")
        generator = torch.Generator("cpu").manual_seed(_SEED)
        last = given.times - 1  # the first and the last token, which may be marks, stay
        order = torch.arange(given.times, device="cpu")
        order[1:last] = 1 + torch.randperm(last - 1, generator=generator, device="cpu")

        def permuted(tensor: Tensor) -> Tensor:
            dim = given.time_dim(tensor)
            if dim is None or _counts_up(tensor, dim):
                return tensor
            return tensor.index_select(dim, order.to(tensor.device))

        other = self._run(given.changed(permuted), lambda tensor: None)
        pairs = [
            (permuted(one), two)
            for one, two in zip(base.output, other.output, strict=False)
            if one.shape == two.shape and given.sample_dim(one) is not None
        ]
        if not pairs or torch.finfo(pairs[0][0].dtype).eps > 1e-4:
            return skipped(ORDER, "no output in float32")
        tolerance = max(_noise(one, _NOISE_OF_ORDER) for one, _ in pairs)
        if max(_difference(one, two) for one, two in pairs) > tolerance:
            return Line(ORDER, "outputs depend on the order of tokens")
        per_token = any(given.time_dim(one) is not None for one, _ in pairs)
        if per_token and not self._sees_later:
            return Line(ORDER, "each token is seen alone")
        finding = Finding(
            *(ORDER, "warning", ""),
            "the order of tokens does not matter: shuffled tokens give the same outputs",
            "add positions to the embeddings, or rotary ones to queries and keys",
        )
        return Line(ORDER, "shuffled tokens give the same outputs", (finding,))


def _leak(where: str | None, message: str, module: nn.Module | None) -> Finding:
    advice = (
        "look for batch_first=True that is missing, view or reshape where transpose is meant, "
        "softmax or mean over dimension 0; a model that mixes samples on purpose: batch_dim=None"
    )
    if getattr(module, "batch_first", None) is False:
        advice = (
            "give it batch_first=True, or inputs [time, batch, features]; a model that mixes "
            "samples on purpose: batch_dim=None"
        )
    return Finding(SAMPLES, "error", where or "", message, advice)


def is_next_token(given: Given, target: Tensor | None) -> bool:
    """Whether the targets of a cross-entropy are the tokens that come next."""
    return _matches(given, target, 1)


def is_own_token(given: Given, target: Tensor | None) -> bool:
    """Whether the targets of a cross-entropy are the tokens themselves."""
    return _matches(given, target, 0)


def _matches(given: Given, target: Tensor | None, shift: int) -> bool:
    tokens = given.tokens
    if tokens is None or target is None or given.times < 4:
        return False
    rows = tokens if given.batch_dim == 0 else tokens.T
    wide = target.numel() == rows.numel()
    if not (wide or target.numel() == rows[:, 1:].numel()):
        return False
    found = target.reshape(len(rows), -1)
    pairs = [(rows[:, shift : shift + found.shape[1]], found[:, : given.times - shift])]
    if given.batch_dim == 1 and wide:  # flattened with the times first
        found = target.reshape(-1, len(rows)).T
        pairs.append((rows[:, shift:], found[:, : given.times - shift]))
    return any(_equal_mostly(expected, given_target) for expected, given_target in pairs)


def _equal_mostly(expected: Tensor, target: Tensor) -> bool:
    counts = target >= 0  # targets that the loss leaves out are negative
    constant = bool((expected == expected.flatten()[0]).all())
    share = (expected == target)[counts].double().mean() if counts.any() else 0.0
    return float(share) >= 0.95 and not constant


def _with_other_end(tensor: Tensor, dim: int, samples: int, cut: int) -> Tensor:
    """The tensor with the last times of the next sample, or its first ones if it is alone."""
    changed = tensor.clone()
    length = tensor.shape[dim] - cut
    end = changed.narrow(dim, cut, length)
    if tensor.shape[samples] > 1:
        end.copy_(tensor.roll(1, samples).narrow(dim, cut, length))
    else:
        end.copy_(tensor.flip(dim).narrow(dim, 0, length))
    return changed


def _counts_up(tensor: Tensor, dim: int) -> bool:
    """Whether a tensor has positions: integers that are the same for all samples, and rise by 1."""
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.dim() != 2:
        return False
    return bool((tensor.diff(dim=dim) == 1).all())


def _alike(tensor: Tensor, dim: int, share: float) -> bool:
    """Whether all samples are the same, up to a share of the largest value."""
    first = tensor.narrow(dim, 0, 1)
    if not tensor.numel():
        return True
    if not tensor.is_floating_point():
        return bool((tensor == first).all())
    most = (tensor - first).abs().max()
    return bool(most <= share * tensor.abs().max())


def _difference(one: Tensor, other: Tensor) -> float:
    """How much two tensors differ, as a share of the first; infinities of both are left out."""
    a, b = one.double(), other.double()
    known = a.isfinite() & b.isfinite()
    if bool((a.isfinite() != b.isfinite()).any()):
        return float("inf")
    a, b = a[known], b[known]
    size = float(a.norm())
    return float((a - b).norm()) / size if size else float((a - b).norm() > 0)


def _noise(tensor: Tensor, units: int = _NOISE) -> float:
    return units * torch.finfo(tensor.dtype).eps
