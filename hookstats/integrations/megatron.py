"""observe(): records the tensors that Megatron Core names at its own observation points."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from megatron.core.tensor_observation import capture_tensor_observations
from torch import Tensor, nn

from hookstats.hooks.observe import observe as observe_tensor
from hookstats.hooks.selection import Selection
from hookstats.watching.settings import as_models, together

KINDS = ("residual_accumulator", "output_logits", "mtp_logits", "router_logits")
"""The kinds of tensors that Megatron has anyway; it computes others only to have them observed."""


@contextmanager
def observe(
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    kinds: Collection[str] = KINDS,
) -> Iterator[None]:
    """Record, in every open `watch`, what Megatron names: ``with observe(model): train()``.

    A tensor is a site like those of `hookstats.observe`, with the name of the module that Megatron
    says has it, and Megatron's name for the tensor: "decoder.layers.0.residual_accumulator". The
    last dimension holds the channels; tensors that tensor parallelism divides along it are recorded
    as a whole.

    Args:
        model: what `watch` got, for the names.
        kinds: Megatron's kinds of tensors, such as "router_scores". Those that are not in `KINDS`
            are computed in every step, recorded or not.

    Raises:
        ValueError: as `hookstats.watch` for its `model`; `kinds` is a string.
    """
    if isinstance(kinds, str):
        raise ValueError(f"kinds = {kinds!r}: expected a tuple of Megatron's kinds of tensors")
    modules = Selection(together(as_models(model))).all_modules
    names = {id(module): name for name, module in modules.items()}

    def record(
        owner: object, name: str, kind: str, tensor: Tensor, tp_dim: int | None = None, *_: object
    ) -> None:
        if (prefix := names.get(id(owner))) is not None:
            is_divided = tp_dim in (-1, tensor.ndim - 1)
            site = f"{prefix}.{name}" if prefix else name
            observe_tensor(site, tensor, channel_dim=None if is_divided else -1)

    with capture_tensor_observations(record, frozenset(kinds)):
        yield
