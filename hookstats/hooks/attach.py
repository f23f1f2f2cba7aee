"""Whether hooks on a model's modules will run, and which modules are to have hooks."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

import torch
from torch import nn

from hookstats._torch import is_compiled
from hookstats.hooks.dynamo import reset_compiled
from hookstats.hooks.selection import Selection, Selector, exact_names
from hookstats.stats.messages import warn
from hookstats.stats.printable import shown

MODULE_KINDS = ("input", "grad_input", "output", "grad_output")
"""The tensors of a module's calls."""


def check_model(model: object) -> None:
    """Raise a ValueError if `model` is no module, or a module whose hooks might never run."""
    if not isinstance(model, nn.Module):
        what = type(model).__name__ if hasattr(model, "param_groups") else shown(model)
        raise ValueError(f"model = {what}: expected a torch.nn.Module")
    for name, module in model.named_modules():
        if is_compiled(module):
            raise ValueError(
                f"model: {name or type(module).__name__!r} is compiled, and hooks set now might "
                "never run; expected a model that is not compiled"
            )


_ALSO = {
    "activation": "output",
    "gradient": "param_grad",
    "grad": "param_grad",
    "weight": "param",
    "parameter": "param",
}
"""What other tools call some kinds, without a plural's s."""


def _meant(kind: str, known: Collection[str]) -> str | None:
    """The known kind that somebody means by `kind`, if any."""
    also = _ALSO.get(kind.lower().removesuffix("s"))
    if kind in known or also in known:
        return kind if kind in known else also
    return next(iter(difflib.get_close_matches(kind, known, n=1)), None)


def check_kinds(kinds: Collection[str], known: Collection[str]) -> None:
    """Raise a ValueError unless `kinds` are one or more of `known`."""
    if isinstance(kinds, str) or not isinstance(kinds, Collection) or not kinds:
        meant = _meant(kinds, known) if isinstance(kinds, str) else None
        hint = f"; did you mean ({meant!r},)?" if meant else ""
        raise ValueError(
            f"kinds = {kinds!r}: expected one or more of {', '.join(known)}, in a tuple{hint}"
        )
    for kind in kinds:
        if kind not in known:
            meant = _meant(str(kind), known)
            hint = f"; did you mean {meant!r}?" if meant else ""
            if kind == "param_grad":
                hint = "; for a parameter's gradient, capture(parameter)"
            raise ValueError(f"kinds has {kind!r}: expected some of {', '.join(known)}{hint}")


def select(
    model: nn.Module,
    kinds: Collection[str],
    include: Selector | None,
    exclude: Selector | None,
    purpose: str,
) -> Selection:
    """The modules and parameters that have some of `kinds`.

    purpose: a verb for the message: what the caller does with the modules.

    Raises:
        ValueError: nothing is left, or include has a name without wildcards that does not exist.
    """
    selection = Selection(model, include, exclude)
    of_modules = not set(kinds).isdisjoint(MODULE_KINDS)
    of_parameters = not set(kinds).issubset(MODULE_KINDS)
    if not ((of_modules and selection.modules) or (of_parameters and selection.parameters)):
        raise ValueError(
            f"include = {include!r}, exclude = {exclude!r}: nothing is left to {purpose} for kinds "
            f"= {tuple(kinds)}; available in {type(model).__name__}: "
            f"{', '.join(map(repr, selection.close_names(include, of_parameters)))}, ..."
        )
    for name in exact_names(include):
        if not selection.has(name, of_parameters):
            what = "a module or parameter" if of_parameters else "a module"
            close = ", ".join(map(repr, selection.close_names(name, of_parameters)))
            raise ValueError(
                f"include has {name!r}: expected {what} of {type(model).__name__}, such as {close}"
            )
    return selection


def make_reachable(modules: Mapping[str, nn.Module]) -> None:
    """Have code that is compiled already call the hooks of `modules`; warn of such code, and of
    modules that take no hooks."""
    scripted = [name for name, m in modules.items() if isinstance(m, torch.jit.ScriptModule)]
    if scripted:
        warn(
            f"model: {', '.join(map(repr, scripted[:3]))}{', ...' * (len(scripted) > 3)}: a "
            "ScriptModule takes no hooks, and none of its calls are observed"
        )
    functions = reset_compiled({type(module) for module in modules.values()})
    if functions:
        warn(
            f"hookstats: compiled before the hooks were set, and therefore without hooks: "
            f"{', '.join(functions)}; these functions are compiled again at their next calls"
        )
