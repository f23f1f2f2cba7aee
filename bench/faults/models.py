"""The models of the corpus, and what trains them: small, and of the kinds that people train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hookstats.cli.training import load_digits

VOCABULARY = 64
LENGTH = 16
CLASSES = 4
"""What a classifier of sequences has to tell: where a sequence begins."""

Batch = tuple[Tensor, Tensor]


@dataclass
class Training:
    """One training run, before its first step; faults change what they like of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[int], Batch]
    """The inputs and targets of a step."""
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    clip: float | None = None
    scheduler: LRScheduler | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    """What a fault has to remember from step to step."""


@cache
def digits() -> Batch:
    """1797 images of zero mean and unit variance, float32 [n, 1, 8, 8], and labels 0..9."""
    images, labels = load_digits()
    return (images - images.mean()) / images.std(), labels


def of_digits(batch: int, seed: int) -> Callable[[int], Batch]:
    """Batches of images."""

    generator = torch.Generator().manual_seed(seed)  # a fault draws from another one

    def take(step: int) -> Batch:
        images, labels = digits()
        chosen = torch.randint(len(images), (batch,), generator=generator)
        return images[chosen], labels[chosen]

    return take


def of_colours(batch: int, seed: int) -> Callable[[int], Batch]:
    """Batches of images in three channels, each image of a hue of its own: [batch, 3, 8, 8]."""
    take, generator = of_digits(batch, seed), torch.Generator().manual_seed(seed)

    def paint(step: int) -> Batch:
        images, labels = take(step)
        hue = torch.rand(batch, 3, 1, 1, generator=generator) + 0.5
        return images * hue + 0.1 * torch.randn(batch, 3, 8, 8, generator=generator), labels

    return paint


def of_tokens(batch: int, seed: int, next_token: bool) -> Callable[[int], Batch]:
    """Batches of sequences that rise by 1, 2, 3 or 4: int64 [batch, LENGTH].

    next_token: whether the targets are the next tokens; else the quarter of the vocabulary where
    the sequences begin.
    """

    generator = torch.Generator().manual_seed(seed)

    def take(step: int) -> Batch:
        start = torch.randint(VOCABULARY, (batch, 1), generator=generator)
        rise = torch.randint(1, CLASSES + 1, (batch, 1), generator=generator)
        tokens = (start + rise * torch.arange(LENGTH + 1)) % VOCABULARY
        quarter = start.squeeze(1) * CLASSES // VOCABULARY
        return tokens[:, :-1], tokens[:, 1:] if next_token else quarter

    return take


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a classifier; of logits [..., classes]."""
    logits = model(x.to(next(model.parameters()).dtype) if x.is_floating_point() else x)
    return functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten())


class ConvNet(nn.Sequential):
    """Three convolutions with ReLU and, if `norm`, batch norm, and a linear head."""

    def __init__(self, width: int, norm: bool, inputs: int = 1) -> None:
        super().__init__()
        channels = (inputs, width, width, 2 * width)
        for i in range(3):
            self.add_module(f"conv{i}", nn.Conv2d(channels[i], channels[i + 1], 3, padding=1))
            if norm:
                self.add_module(f"norm{i}", nn.BatchNorm2d(channels[i + 1]))
            self.add_module(f"relu{i}", nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.flat = nn.Flatten()
        self.head = nn.Linear(8 * width, 10)


class Residual(nn.Module):
    """x + two convolutions of x, each with batch norm; `shortcut` times x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.shortcut = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(self.shortcut * x + y)
        return out


class ResNet(nn.Module):
    """A stem, residual blocks, and a linear head."""

    def __init__(self, width: int, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


class Attention(nn.Module):
    """Attention with one projection for query, key and value, as GPT-2's."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.c_attn = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(-1)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, -1)
        )
        logits = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(mask, -1e4)
        mixed = self.softmax(logits) @ v
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """A block of a transformer, with the norms first (GPT-2) or last (BERT)."""

    def __init__(self, width: int, heads: int, first: bool) -> None:
        super().__init__()
        self.first = first
        self.shortcut = 1.0
        self.ln_1: nn.Module = nn.LayerNorm(width)
        self.attn = Attention(width, heads, causal=first)
        self.ln_2: nn.Module = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.shortcut * x + self.attn(self.ln_1(x))
            return self.shortcut * x + self.feed(self.ln_2(x))
        x = self.ln_1(self.shortcut * x + self.attn(x))
        out: Tensor = self.ln_2(self.shortcut * x + self.feed(x))
        return out

    def feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.gelu(self.c_fc(x)))
        return out


class Transformer(nn.Module):
    """Embeddings, blocks, a head for each token (GPT-2's) or for the sequence (BERT's)."""

    def __init__(self, width: int, blocks: int = 4, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(LENGTH, width)
        self.h = nn.Sequential(*(Block(width, heads, causal) for _ in range(blocks)))
        self.ln_f: nn.Module = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY if causal else CLASSES, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = 0.02 / (2 * blocks) ** 0.5 if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(parameter, std=std if causal else 0.05)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.h(self.wte(tokens) + self.wpe.weight)
        x = self.ln_f(x)
        out: Tensor = self.head(x if self.causal else x.mean(1))
        return out


class Recurrent(nn.Module):
    """A plain recurrent network over the rows of an image, and a linear head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.recur = nn.Linear(width, width, bias=False)
        self.activation: nn.Module = nn.Tanh()
        self.head = nn.Linear(width, 10)
        nn.init.orthogonal_(self.recur.weight)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.enter(images.flatten(1, 2))
        state = rows.new_zeros(len(rows), self.recur.in_features)
        for i in range(rows.shape[1]):
            state = self.activation(rows[:, i] + self.recur(state))
        out: Tensor = self.head(state)
        return out


class Vae(nn.Module):
    """The VAE of PyTorch's examples."""

    def __init__(self, width: int, code: int = 8) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, width)
        self.mu, self.logvar = nn.Linear(width, code), nn.Linear(width, code)
        self.fc3, self.fc4 = nn.Linear(code, width), nn.Linear(width, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = functional.relu(self.fc1(x.flatten(1)))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        code = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.fc4(functional.relu(self.fc3(code))), mu, logvar


def divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """From a normal distribution, per sample."""
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum() / len(mu)


def evidence_bound(model: nn.Module, x: Tensor, y: Tensor, weight: float = 0.1) -> Tensor:
    """The loss of a VAE; weight: of the divergence."""
    out, mu, logvar = model(x)
    squares = (out - x.flatten(1)).square().sum() / len(x)
    return squares + weight * divergence(mu, logvar)


class MLP(nn.Sequential):
    """Flatten, hidden layers with activations, and a head."""

    def __init__(self, width: int, activation: type[nn.Module] = nn.ReLU, hidden: int = 5) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        for i in range(hidden):
            layer = nn.Linear(width if i else 64, width)
            nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
            if activation is not nn.ReLU:
                nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
            self.add_module(f"fc{i}", layer)
            self.add_module(f"act{i}", activation())
        self.head = nn.Linear(width, 10)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True)
class Base:
    """A sound training run that faults are planted into; sizes vary with the seed."""

    model: Callable[[int], nn.Module]
    width: int
    batch: int
    optimizer: str
    lr: float
    data: str = "digits"
    dtype: str = "fp32"
    warmup: int = 0
    """For how many steps the learning rate grows linearly."""
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = cross_entropy

    def begin(self, seed: int) -> Training:
        """The training run, its random numbers begun from `seed`."""
        torch.manual_seed(seed)
        batch = self.batch * (4, 3, 6, 5)[seed % 4] // 4
        width = self.width * (4, 5, 3, 4)[seed % 4] // 4
        model = self.model(width)
        autocast = torch.float16 if self.dtype == "fp16" else None
        if self.dtype == "bf16":
            model = model.bfloat16()
        optimizer = OPTIMIZERS[self.optimizer](model.parameters(), lr=self.lr)
        return Training(
            model,
            optimizer,
            self._batches(batch, seed),
            self.loss,
            autocast,
            torch.amp.GradScaler("cpu", init_scale=1024.0) if autocast else None,
            1.0 if self.data == "text" else None,
            self._schedule(optimizer),
        )

    def _batches(self, batch: int, seed: int) -> Callable[[int], Batch]:
        if self.data == "digits":
            return of_digits(batch, seed)
        if self.data == "colours":
            return of_colours(batch, seed)
        return of_tokens(batch, seed, next_token=self.data == "text")

    def _schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        if not self.warmup:
            return None
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.warmup))


def _bert(width: int) -> nn.Module:
    return Transformer(width, causal=False)


def _tanh(width: int) -> nn.Module:
    return MLP(width, nn.Tanh)


def _plain(width: int) -> nn.Module:
    return ConvNet(width, norm=False)


def _normed(width: int) -> nn.Module:
    return ConvNet(width, norm=True)


def _coloured(width: int) -> nn.Module:
    return ConvNet(width, norm=True, inputs=3)


def _deep(width: int) -> nn.Module:
    return Transformer(width, blocks=8, causal=False)


BASES = {
    "cnn": Base(_plain, 16, 64, "sgd", 0.05),
    "cnn-adam": Base(_plain, 16, 16, "adam", 2e-3),
    "cnn-norm": Base(_normed, 16, 32, "sgd", 0.05),
    "cnn-norm-small": Base(_normed, 16, 8, "adam", 2e-3),
    "cnn-norm-large": Base(_normed, 16, 128, "adamw", 3e-3),
    "resnet": Base(ResNet, 16, 32, "sgd", 0.05),
    "resnet-adam": Base(ResNet, 16, 16, "adamw", 2e-3),
    "cnn-colours": Base(_coloured, 16, 32, "adam", 2e-3, "colours"),
    "gpt": Base(Transformer, 64, 16, "adamw", 2e-3, "text"),
    "gpt-small": Base(Transformer, 64, 8, "adamw", 1e-3, "text"),
    "gpt-bf16": Base(Transformer, 64, 16, "adamw", 2e-3, "text", "bf16"),
    "gpt-fp16": Base(Transformer, 64, 16, "adamw", 2e-3, "text", "fp16"),
    "bert": Base(_bert, 64, 32, "adamw", 1e-3, "sequences"),
    "bert-small": Base(_bert, 64, 8, "adam", 5e-4, "sequences"),
    "bert-warm-up": Base(_deep, 64, 32, "adamw", 5e-3, "sequences", warmup=24),
    "rnn": Base(Recurrent, 64, 64, "adam", 2e-3),
    "rnn-sgd": Base(Recurrent, 48, 16, "sgd", 0.02),
    "mlp": Base(MLP, 64, 64, "sgd", 0.02),
    "mlp-adam": Base(MLP, 128, 16, "adam", 1e-3),
    "mlp-tanh": Base(_tanh, 64, 64, "adam", 1e-3),
    "vae": Base(Vae, 64, 64, "adam", 5e-3, loss=evidence_bound),
    "mlp-fp16": Base(MLP, 64, 64, "sgd", 0.02, dtype="fp16"),
    "mlp-bf16": Base(MLP, 64, 64, "sgd", 0.02, dtype="bf16"),
}
"""The healthy runs, by name."""
