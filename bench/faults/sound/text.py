"""Sound trainings of sequences: transformers, recurrent networks, and what is added to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from bench.faults.sound.program import Session, adam, adamw, fit, mlp, sgd, sound

VOCABULARY = 48
LENGTH = 24


def chain(seed: int = 0) -> Tensor:
    """A long text, int64 [n], of a Markov chain over letters: it can be learned in part."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.randint(VOCABULARY, (VOCABULARY, 4), generator=generator)
    picks = torch.randint(4, (40_000,), generator=generator).tolist()
    table, at, out = follows.tolist(), 0, []
    for pick in picks:
        at = table[at][min(pick, 2) if pick else 0]
        out.append(at)
    return torch.tensor(out)


def windows(batch: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Random windows of the text, and the same one letter later."""
    text = chain()

    def take() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - LENGTH - 1, (batch,))
        found = torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()])
        return found[:, :-1], found[:, 1:]

    return take


class Heads(nn.Module):
    """Self-attention in separate projections, or in one as GPT-2 has it."""

    def __init__(self, width: int, heads: int, causal: bool, joint: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.joint = heads, causal, joint
        if joint:
            self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(width, width, bias=bias) for _ in range(3)
            )
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        parts = (
            self.c_attn(x).split(width, -1)
            if self.joint
            else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """A transformer's block, its norms first."""

    def __init__(self, width: int, causal: bool = True, modern: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if modern else nn.LayerNorm
        self.ln_1, self.ln_2 = norm(width), norm(width)
        self.attn = Heads(width, 4, causal, not modern, not modern)
        self.modern = modern
        if modern:
            self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
            self.down = nn.Linear(2 * width, width, bias=False)
        else:
            self.mlp = nn.ModuleDict(
                {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
            )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        y = self.ln_2(x)
        if self.modern:
            out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
            return out
        return x + self.feed(y)

    def feed(self, y: Tensor) -> Tensor:
        out: Tensor = self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](y)))
        return out


class Gpt(nn.Module):
    """nanoGPT in small; modern: Llama's parts, no biases."""

    def __init__(
        self, width: int, layers: int = 3, modern: bool = False, tied: bool = True
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.h = nn.ModuleList(Layer(width, modern=modern) for _ in range(layers))
        self.ln_f = (nn.RMSNorm if modern else nn.LayerNorm)(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                small = name.endswith(("c_proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if small else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for layer in self.h:
            x = layer(x)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out


def next_letter(model: nn.Module) -> Callable[..., Tensor]:
    """The cross-entropy of the next letters."""
    return lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def warm(optimizer: torch.optim.Optimizer, steps: int, up: int = 50) -> Any:
    """Linear warm-up, then a cosine down to a tenth."""

    def rate(step: int) -> float:
        if step < up:
            return (step + 1) / up
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - up) / max(1, steps - up)))

    return lr_scheduler.LambdaLR(optimizer, rate)


@sound(600)
def gpt(r: Session) -> None:
    model = Gpt(r.width(48))
    optimizer = adamw(model, 2e-3, 0.1)
    fit(r, model, optimizer, windows(12), next_letter(model), 1.0, warm(optimizer, r.steps))


@sound(500)
def gpt_without_warm_up(r: Session) -> None:
    model = Gpt(r.width(32), 4, tied=False)
    fit(r, model, adam(model, 3e-3), windows(8), next_letter(model))


@sound(500)
def gpt_narrow(r: Session) -> None:
    model = Gpt(r.width(16), 2)
    fit(r, model, adamw(model, 3e-3), windows(16), next_letter(model), 1.0)


@sound(500)
def llama(r: Session) -> None:
    model = Gpt(r.width(32), 3, modern=True, tied=False)
    optimizer = adamw(model, 2e-3, 0.1)
    fit(r, model, optimizer, windows(12), next_letter(model), 1.0, warm(optimizer, r.steps))


@sound(400)
def embeddings_of_two_sizes(r: Session) -> None:
    width = r.width(32)
    model = Gpt(width, 2, tied=False)
    model.tok, model.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
    nn.init.normal_(model.pos.weight, std=0.02)
    del model.wte, model.wpe

    def loss(x: Tensor, y: Tensor) -> Tensor:
        hidden = model.tok(x) + model.pos(torch.arange(LENGTH))
        for layer in model.h:
            hidden = layer(hidden)
        return F.cross_entropy(model.lm_head(model.ln_f(hidden)).flatten(0, 1), y.flatten())

    fit(r, model, adamw(model, 2e-3), windows(12), loss)


@sound(350)
def gpt_in_bf16(r: Session) -> None:
    model = Gpt(r.width(32), 2).bfloat16()
    loss = lambda x, y: F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())  # noqa: E731
    fit(r, model, adamw(model, 3e-3), windows(16), loss, 1.0)


@sound(350)
def gpt_under_autocast(r: Session) -> None:
    model = Gpt(r.width(32), 2)
    optimizer = adamw(model, 2e-3)
    fit(r, model, optimizer, windows(16), next_letter(model), 1.0, autocast=True)


class Bert(nn.Module):
    """Masked letters; padding is masked by -inf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(VOCABULARY + 2, width),
            nn.Embedding(LENGTH, width),
        )
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, causal=False) for _ in range(3))
        self.head = nn.Linear(width, VOCABULARY)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight + self.types(torch.zeros_like(tokens))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.head(x)
        return out


@sound(500)
def bert_with_padding(r: Session) -> None:
    model = Bert(r.width(32))
    take = windows(16)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (len(x),))
        padding = torch.arange(LENGTH) >= lengths[:, None]
        hidden = (torch.rand(x.shape) < 0.15) & ~padding
        hidden[:, 0] = True
        tokens = x.masked_fill(hidden, VOCABULARY).masked_fill(padding, VOCABULARY + 1)
        mask = torch.zeros(len(x), 1, 1, LENGTH).masked_fill(padding[:, None, None], -math.inf)
        return F.cross_entropy(model(tokens, mask)[hidden], x[hidden])

    optimizer = adamw(model, 2e-3)
    fit(r, model, optimizer, take, loss, 1.0, warm(optimizer, r.steps))


class AddMask(nn.Module):
    """Logits with -inf where a token must not look, as a module of its own."""

    def forward(self, logits: Tensor) -> Tensor:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return logits.masked_fill(future, -math.inf)


@sound(400)
def masked_by_module(r: Session) -> None:
    width = r.width(32)
    model = nn.ModuleDict(
        {
            **{name: nn.Linear(width, width) for name in ("query", "key", "value", "out")},
            "embed": nn.Embedding(VOCABULARY, width),
            "head": nn.Linear(width, VOCABULARY),
            "mask": AddMask(),
            "softmax": nn.Softmax(-1),
            "norm": nn.LayerNorm(width),
        }
    )

    def loss(x: Tensor, y: Tensor) -> Tensor:
        hidden = model["embed"](x)
        q, k, v = (model[name](hidden) for name in ("query", "key", "value"))
        weights = model["softmax"](model["mask"](q @ k.transpose(1, 2) / width**0.5))
        hidden = model["norm"](hidden + model["out"](weights @ v))
        return F.cross_entropy(model["head"](hidden).flatten(0, 1), y.flatten())

    fit(r, model, adam(model, 2e-3), windows(16), loss)


class Recurrent(nn.Module):
    """An embedding, a recurrent layer, and a head; PyTorch's word language model."""

    def __init__(self, kind: type[nn.RNNBase], width: int, tied: bool = False) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(VOCABULARY, width), nn.Dropout(0.2)
        self.rnn = kind(width, width, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(width, VOCABULARY)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = self.rnn(self.drop(self.encoder(tokens)), state)
        return self.decoder(self.drop(out)), state


@sound(600)
def lstm_with_state(r: Session) -> None:
    model = Recurrent(nn.LSTM, r.width(48))
    rows = chain().view(20, -1)
    optimizer = adam(model, 3e-3)
    w = r.start(model, optimizer)
    at, state = 0, None
    for _ in range(r.steps):
        if at + LENGTH + 1 > rows.shape[1]:
            at, state = 0, None  # the next epoch
        x, y = rows[:, at : at + LENGTH], rows[:, at + 1 : at + LENGTH + 1]
        at += LENGTH
        out, state = model(x, state)
        state = tuple(part.detach() for part in state)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        w.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


@sound(500)
def gru_tied(r: Session) -> None:
    model = Recurrent(nn.GRU, r.width(48), tied=True)
    loss = lambda x, y: F.cross_entropy(model(x, None)[0].flatten(0, 1), y.flatten())  # noqa: E731
    fit(r, model, adam(model, 2e-3), windows(16), loss, 0.5)


@sound(500)
def plain_rnn(r: Session) -> None:
    model = nn.ModuleDict(
        {"rnn": nn.RNN(8, r.width(48), batch_first=True), "head": nn.Linear(r.width(48), 10)}
    )
    from bench.faults.models import of_digits

    take = of_digits(32, r.seed)
    loss = lambda x, y: F.cross_entropy(  # noqa: E731
        model["head"](model["rnn"](x[:, 0])[0][:, -1]), y
    )
    fit(r, model, adam(model), lambda: take(0), loss, 1.0)


class Copy(nn.Module):
    """torch's own transformer, encoder and decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, width), nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.body = nn.Transformer(width, 4, 2, 2, 2 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        n, m = x.shape[1], y.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(m)
        out = self.body(
            self.source(x) + self.place[:n], self.target(y) + self.place[:m], tgt_mask=mask
        )
        found: Tensor = self.head(out)
        return found


@sound(400)
def encoder_decoder(r: Session) -> None:
    model = Copy(r.width(32))

    def take() -> tuple[Tensor]:
        return (torch.randint(1, VOCABULARY, (16, 10)),)

    def loss(x: Tensor) -> Tensor:
        given = torch.cat((torch.zeros(len(x), 1, dtype=torch.long), x.flip(1)[:, :-1]), 1)
        return F.cross_entropy(model(x, given).flatten(0, 1), x.flip(1).flatten())

    optimizer = adam(model, 2e-3)
    fit(r, model, optimizer, take, loss, 1.0, warm(optimizer, r.steps))


class Experts(nn.Module):
    """The best of four experts for each token, and a loss that balances them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chances = self.router(flat).softmax(-1)
        best, chosen = chances.max(-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * best[rows, None])
        share = F.one_hot(chosen, 4).float().mean(0)
        self.balance = 4 * (share * chances.mean(0)).sum()
        return out.view_as(x)


class Mixture(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.attn = nn.ModuleList(Heads(width, 4, True, False, True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.moe = nn.ModuleList(Experts(width) for _ in range(2))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.pos.weight
        for i in range(2):
            x = x + self.attn[i](self.norms[2 * i](x))
            x = x + self.moe[i](self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[4](x))
        return out


@sound(400)
def mixture_of_experts(r: Session) -> None:
    model = Mixture(r.width(32))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        return value + 0.01 * sum(moe.balance for moe in model.moe)

    fit(r, model, adamw(model, 2e-3), windows(12), loss, 1.0)


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=5**0.5)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + 2 * self.lora_B(self.lora_A(x))
        return out


@sound(400)
def lora(r: Session) -> None:
    model = Gpt(r.width(48), 3, tied=False)
    take = windows(12)
    optimizer = adam(model, 2e-3)
    for _ in range(80):
        x, y = take()
        optimizer.zero_grad()
        next_letter(model)(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.requires_grad_(False)
    for layer in model.h:
        layer.attn.c_attn = Adapted(layer.attn.c_attn)  # type: ignore[union-attr,arg-type]
        layer.attn.c_proj = Adapted(layer.attn.c_proj)  # type: ignore[union-attr,arg-type]
    fit(r, model, adamw(model, 2e-3), take, next_letter(model))


@sound(300)
def lora_of_noise(r: Session) -> None:
    model = Gpt(r.width(48), 2, tied=False)
    model.requires_grad_(False)
    for layer in model.h:
        layer.attn.c_attn = Adapted(layer.attn.c_attn)  # type: ignore[union-attr,arg-type]
    model.lm_head.requires_grad_(True)
    fit(r, model, adamw(model, 1e-3), windows(8), next_letter(model))


@sound(300)
def prompt_tuning(r: Session) -> None:
    model = Gpt(r.width(32), 2, tied=False)
    model.requires_grad_(False)
    model.prompt = nn.Parameter(torch.randn(4, r.width(32)) * 0.5)
    model.lm_head.requires_grad_(True)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        hidden = model.wte(x) + model.wpe.weight
        hidden = torch.cat((model.prompt.expand(len(x), -1, -1), hidden), 1)
        for layer in model.h:
            hidden = layer(hidden)
        return F.cross_entropy(model.lm_head(model.ln_f(hidden[:, 4:])).flatten(0, 1), y.flatten())

    fit(r, model, adamw(model, 1e-2), windows(8), loss)


class Scan(nn.Module):
    """A gated linear recurrence; its input projection is named as Mamba's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.in_proj, self.out_proj = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.decay = nn.Parameter(torch.linspace(-3, 3, 2 * width))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        decay, state, out = self.decay.sigmoid(), 0.0, []
        for t in range(x.shape[1]):
            state = decay * state + (1 - decay) * value[:, t]
            out.append(state)
        y: Tensor = x + self.out_proj(torch.stack(out, 1) * F.silu(gate))
        return y


@sound(300)
def state_space(r: Session) -> None:
    width = r.width(24)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, width), Scan(width), Scan(width), nn.Linear(width, VOCABULARY)
    )
    fit(r, model, adam(model, 3e-3), windows(8), next_letter(model))


@sound(3000)
def grokking(r: Session) -> None:
    pairs = torch.cartesian_prod(torch.arange(23), torch.arange(23))
    answers = (pairs[:, 0] + pairs[:, 1]) % 23
    some = torch.randperm(len(pairs))[: len(pairs) // 2]
    x, y = pairs[some], answers[some]
    model = nn.Sequential(nn.Embedding(23, r.width(32)), nn.Flatten(), mlp(2 * r.width(32), 64, 23))
    fit(
        r, model, adamw(model, 1e-3, 1.0), lambda: (x, y), lambda x, y: F.cross_entropy(model(x), y)
    )


@sound(1500)
def sparse_parity(r: Session) -> None:
    model = mlp(24, r.width(128), 1)

    def take() -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2, (32, 24)).float() * 2 - 1
        return x, (x[:, :3].prod(1) + 1) / 2

    loss = lambda x, y: F.binary_cross_entropy_with_logits(model(x)[:, 0], y)  # noqa: E731
    fit(r, model, sgd(model, 0.1, 0.0), take, loss)


@sound(500)
def bag_of_words(r: Session) -> None:
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, r.width(16)), nn.Linear(r.width(16), 4))
    take = windows(32)
    loss = lambda x, y: F.cross_entropy(model(x), x[:, 0] % 4)  # noqa: E731
    fit(r, model, sgd(model, 0.5, 0.9), take, loss)


@sound(5000, long=True)
def gpt_for_long(r: Session) -> None:
    model = Gpt(r.width(32), 2)
    optimizer = adamw(model, 2e-3, 0.1)
    fit(r, model, optimizer, windows(8), next_letter(model), 1.0, warm(optimizer, r.steps, 200))
