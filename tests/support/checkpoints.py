"""The kinds of activation checkpointing, called alike: `how(function, *args)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint


def plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def reentrant(function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=True)


def non_reentrant(function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint.checkpoint(function, *args, use_reentrant=False)


def selective(function: Callable[..., Any], *args: Any) -> Any:
    def save_products(ctx: object, op: object, *args: object, **kwargs: object) -> Any:
        policies = checkpoint.CheckpointPolicy
        saved = op is torch.ops.aten.addmm.default
        return policies.MUST_SAVE if saved else policies.PREFER_RECOMPUTE

    def contexts() -> Any:
        return checkpoint.create_selective_checkpoint_contexts(save_products)

    return checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


CHECKPOINTS = [reentrant, non_reentrant, selective]
