"""Which parameters the optimizer has, and element types that are traps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats.preflight.finding import Finding, Line, listed, skipped
from hookstats.preflight.given import Given
from hookstats.records.alerts import Severity

OPTIMIZER, DTYPES = "optimizer", "dtypes"


def of_optimizers(
    model: nn.Module, optimizers: Sequence[Optimizer], gradients: Mapping[str, Tensor | None]
) -> Line:
    """Parameters that no optimizer has; a note where they get no gradient either, as the averaged
    weights of a teacher do."""
    if not optimizers:
        return skipped(OPTIMIZER, "no optimizer is given")
    trained = members(optimizers)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in named.items() if id(p) not in trained]
    text = f"{len(named) - len(missing)} of {len(named)} parameters are in an optimizer"
    if not missing:
        return Line(OPTIMIZER, text)
    needed = [name for name in missing if gradients.get(name) is not None]
    severity: Severity = "warning" if needed else "note"
    is_another = bool(needed) and len(missing) == len(named)
    finding = Finding(
        *(OPTIMIZER, "error" if is_another else severity, (needed or missing)[0]),
        f"{len(missing)} of {len(named)} parameters are in no optimizer: "
        f"{listed(needed or missing)}{'; it has those of another model' * is_another}",
        "create the optimizer from model.parameters() after all layers are created, replaced and "
        "moved, or freeze what is not to be trained by requires_grad_(False)",
    )
    return Line(OPTIMIZER, text, (finding,))


def members(optimizers: Sequence[Optimizer]) -> set[int]:
    """The parameters that optimizers have, by id."""
    return {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}


def of_dtypes(model: nn.Module, given: Given) -> Line:
    """Element types with which training stalls or is slow, and inputs that are not ready for it."""
    types = Counter(p.dtype for p in model.parameters() if p.is_floating_point())
    if not types:
        return skipped(DTYPES, "no parameters")
    findings = []
    text = ", ".join(f"{count} {_short(dtype)}" for dtype, count in types.most_common())
    trains = [p for p in model.parameters() if p.requires_grad]
    if any(p.dtype == torch.float16 for p in trains):
        where = next(name for name, p in model.named_parameters() if p.dtype == torch.float16)
        findings.append(
            Finding(
                *(DTYPES, "warning", where),
                "parameters of float16 are trained: updates below a 2,000th of a weight are lost, "
                "and Adam's eps of 1e-8 is zero",
                "keep the model in float32 and use torch.autocast with a GradScaler, or bfloat16",
            )
        )
    if torch.float64 in types and len(types) > 1:
        where = next(name for name, p in model.named_parameters() if p.dtype == torch.float64)
        findings.append(
            Finding(
                *(DTYPES, "warning", where),
                f"parameters of float64 stand beside others: {text}",
                "make them of float32: a NumPy array is of float64 by default",
            )
        )
    findings += [found for one in given.tensors() if (found := _of_input(one)) is not None][:1]
    return Line(DTYPES, text + " parameters", tuple(findings))


def _of_input(tensor: Tensor) -> Finding | None:
    if not (tensor.is_floating_point() and tensor.numel()):
        return None
    if tensor.isnan().any():
        return Finding(
            *(DTYPES, "error", "", f"{int(tensor.isnan().sum())} values of the input are NaN"),
            "look for missing values in the data, and a column whose deviation is zero",
        )
    values = tensor.double()
    low, high = float(values.min()), float(values.max())
    is_bytes = high > 64 and low >= 0 and high <= 255 and bool((values == values.round()).all())
    if is_bytes and tensor.dim() >= 3:
        return Finding(
            *(DTYPES, "warning", ""),
            f"the input has integers from {low:.0f} to {high:.0f}: images that were not scaled",
            "divide by 255, subtract the mean of each channel and divide by its deviation",
        )
    return None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
