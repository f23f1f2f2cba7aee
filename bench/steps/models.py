"""JOBS: the models whose training steps are timed, with random weights, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

from bench.cuda.trainings import mlp
from bench.smoke import pick


@dataclass(frozen=True)
class Job:
    """What is trained, and on what."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    """Inputs and targets."""
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    steps: int
    """That are timed at once."""


def classes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def _gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=pick(6, 1),
        n_embd=pick(384, 16),
        n_head=pick(6, 2),
        n_positions=128,
        vocab_size=pick(50257, 64),
        resid_pdrop=0.0,  # every step is to be the same
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _tokens() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(pick(50257, 64), pick((8, 128), (2, 8)))
    return tokens, tokens


def _language(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=x, labels=y, use_cache=False).loss
    return loss


def _resnet() -> nn.Module:
    config = (
        ResNetConfig()
        if pick(True, False)
        else ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    )
    config.num_labels = 1000
    return ResNetForImageClassification(config)


def _pictures(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).logits, y)


JOBS = {
    "200-layer MLP, 32x128": Job(
        lambda: mlp(128, pick(200, 4)),
        lambda: (torch.randn(32, 128), torch.randint(128, (32,))),
        classes,
        steps=pick(10, 1),
    ),
    "GPT-2 6x384, 8x128 tokens": Job(_gpt2, _tokens, _language, steps=1),
    "ResNet-50, 4x3x128x128": Job(
        _resnet,
        lambda: (torch.randn(4, 3, *pick((128, 128), (32, 32))), torch.randint(1000, (4,))),
        _pictures,
        steps=1,
    ),
}
