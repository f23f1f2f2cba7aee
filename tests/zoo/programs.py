"""Programs: small trainings in the manner of upstream's, each of a kind, without hookstats.

    python tests/zoo/programs.py NAME

prints losses, and at the end a digest of all parameters and of the states of the random generators.
"""

from __future__ import annotations

import copy
import hashlib
import io
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint
from torch.utils.data import DataLoader, TensorDataset

Models = list[nn.Module]
PROGRAMS: dict[str, Callable[[], Models]] = {}
STEPS = 24


def program(run: Callable[[], Models]) -> Callable[[], Models]:
    """Make a function a program; it returns what it trained."""
    PROGRAMS[run.__name__.replace("_", "-")] = run
    return run


def show(step: int, loss: Tensor) -> None:
    if step % 8 == 0:
        print(step, loss.item())


def update(optimizer: Any, loss: Tensor, step: int) -> None:
    """The three lines that most loops have."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show(step, loss)


def images(n: int = 16) -> tuple[Tensor, Tensor]:
    """Noise with a bright quarter, which is the class."""
    x, y = torch.randn(n, 1, 8, 8), torch.randint(4, (n,))
    for i, label in enumerate(y.tolist()):
        x[i, :, 4 * (label // 2) :][:, :4, 4 * (label % 2) :][:, :, :4] += 2
    return x, y


def text(n: int = 8, length: int = 12) -> tuple[Tensor, Tensor]:
    """Sequences in which each letter follows from the one before, but for some noise."""
    ids = torch.randint(20, (n, 1)) + torch.arange(length + 1)
    ids = (ids + (torch.rand(ids.shape) < 0.05).long()) % 20
    return ids[:, :-1], ids[:, 1:]


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Net(nn.Module):
    """A convolutional network with functional activations and a dropout behind one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(1, 8, 3), nn.Linear(72, 32), nn.Linear(32, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return F.log_softmax(self.fc2(self.dropout(F.relu(self.fc1(x)))), 1)


class Gpt(nn.Module):
    """Causal attention by torch's operator, and a table of positions as a parameter."""

    def __init__(self, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(20, width)
        self.positions = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList(GptBlock(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 20, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class GptBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.act(self.up(self.norm2(x))))  # type: ignore[no-any-return]


def of_letters(model: nn.Module) -> Tensor:
    x, y = text()
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@program
def digits() -> Models:
    """Epochs with a DataLoader, and a test in eval mode without gradients after each."""
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    for epoch in range(3):
        model.train()
        for i, (x, y) in enumerate(
            DataLoader(TensorDataset(*images(128)), 16, shuffle=True, num_workers=1)
        ):
            update(optimizer, F.nll_loss(model(x), y), 8 * epoch + i)
        model.eval()
        with torch.no_grad():
            x, y = images(64)
            print("right:", (model(x).argmax(1) == y).sum().item())
    return [model]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.lstm = nn.Embedding(20, 16), nn.LSTM(16, 24)
        self.out = nn.Linear(24, 20)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self.lstm(self.letters(x), state)
        return self.out(y), state


@program
def word_model_by_hand() -> Models:
    """No optimizer: clipping and an update by hand; the best model is saved whole, and loaded."""
    model, file = Lstm(), io.BytesIO()
    for epoch in range(2):
        state: Any = (torch.zeros(1, 8, 24), torch.zeros(1, 8, 24))
        for i in range(STEPS // 2):
            state = tuple(part.detach() for part in state)
            x, y = (part.T for part in text())
            model.zero_grad()
            out, state = model(x, state)
            loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-2.0)
            show(i, loss)
        torch.save(model, file) if epoch == 0 else None
    file.seek(0)
    with torch.serialization.safe_globals([Lstm, nn.Embedding, nn.LSTM, nn.Linear]):
        best = torch.load(file)
    print("saved:", sorted(best.__dict__["_forward_hooks"]), best(x, state)[0].mean().item())
    return [model, best]


@program
def gan() -> Models:
    """Two optimizers; the critic sees real and faked images in two backwards."""
    maker, critic = mlp(8, 32, 64), nn.Sequential(*mlp(64, 32, 1), nn.Sigmoid())
    of_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    of_maker = torch.optim.Adam(maker.parameters(), 2e-4, betas=(0.5, 0.999))
    for step in range(STEPS):
        critic.zero_grad()
        F.binary_cross_entropy(critic(images()[0].flatten(1)), torch.ones(16, 1)).backward()
        fake = maker(torch.randn(16, 8))
        F.binary_cross_entropy(critic(fake.detach()), torch.zeros(16, 1)).backward()
        of_critic.step()
        maker.zero_grad()
        loss = F.binary_cross_entropy(critic(fake), torch.ones(16, 1))
        loss.backward()
        of_maker.step()
        show(step, loss)
    with torch.no_grad():
        print("sample:", maker(torch.randn(4, 8)).mean().item())
    return [maker, critic]


class Greedy(nn.Linear):
    """A layer that is trained by itself, by its forward, as in the forward-forward algorithm."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(inner, outer)
        self.optimizer = torch.optim.Adam(self.parameters(), 0.03)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x / (x.norm(2, 1, keepdim=True) + 1e-4)))

    def fit(self, good: Tensor, bad: Tensor) -> None:
        for step in range(STEPS // 2):
            goodness = self.forward(good).pow(2).mean(1), self.forward(bad).pow(2).mean(1)
            loss = F.softplus(torch.cat([2 - goodness[0], goodness[1] - 2])).mean()
            update(self.optimizer, loss, step)


@program
def forward_forward() -> Models:
    layers = [Greedy(64, 48), Greedy(48, 48)]
    good, bad = images(64)[0].flatten(1), torch.randn(64, 64)
    for layer in layers:
        layer.fit(good, bad)
        good, bad = layer.forward(good).detach(), layer.forward(bad).detach()
    return [*layers]


@program
def greedy_layers() -> Models:
    """Layers with an optimizer each, all made up front, trained one after the other."""
    layers = [nn.Linear(64, 64) for _ in range(2)]
    optimizers = [torch.optim.Adam(layer.parameters(), 0.01) for layer in layers]
    x = images(32)[0].flatten(1)
    for layer, optimizer in zip(layers, optimizers, strict=True):
        for step in range(STEPS // 2):
            update(optimizer, F.mse_loss(layer(x).relu(), x.relu()), step)
        x = layer(x).relu().detach()
    return [*layers]


def _fit_part(seed: int, found: Any) -> None:
    torch.manual_seed(seed)
    model = mlp(64, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        x, y = images()
        optimizer.zero_grad()
        F.cross_entropy(model(x.flatten(1)), y).backward()
        optimizer.step()
    found.put((seed, [p.detach().numpy() for p in model.parameters()]))


@program
def two_processes() -> Models:
    """Processes without a process group, each of which trains a model."""
    context: Any = get_context("fork")
    found = context.Queue()
    processes = [context.Process(target=_fit_part, args=(seed, found)) for seed in range(2)]
    for process in processes:
        process.start()
    parts = dict(found.get() for _ in processes)
    for process in processes:
        process.join()
    print([float(sum(p.sum() for p in parts[seed])) for seed in sorted(parts)])
    return []


def pole(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """The next states of carts, which are to stay near 0, and the rewards."""
    speed = states[:, 1] + 0.3 * (2.0 * actions - 1) + 0.1 * states[:, 0]
    states = torch.stack([states[:, 0] + 0.3 * speed, speed], 1).clamp(-4, 4)
    return states, -states[:, 0].abs()


@program
def actor_critic() -> Models:
    """Experience is collected without gradients, in training mode; one loss for two heads."""
    trunk, actor, critic = mlp(2, 32, 32), nn.Linear(32, 2), nn.Linear(32, 1)
    model = nn.ModuleDict({"trunk": trunk, "actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for episode in range(STEPS):
        states = torch.randn(32, 2)
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=actor(trunk(states))).sample()
        later, rewards = pole(states, actions)
        hidden = trunk(states)
        with torch.no_grad():
            target = rewards + 0.9 * critic(trunk(later))[:, 0]
        value = critic(hidden)[:, 0]
        log = torch.distributions.Categorical(logits=actor(hidden)).log_prob(actions)
        loss = -(log * (target - value).detach()).mean() + F.smooth_l1_loss(value, target)
        update(optimizer, loss, episode)
    return [model]


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(1, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        state, found = None, []
        for one in x.split(1, 1):
            state = self.cell(one, state)
            found.append(self.out(state[0]))
        return torch.cat(found, 1)


@program
def waves_by_lbfgs() -> Models:
    """Closures, float64, and a validation without gradients that stays in training mode."""
    model = Waves().double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x = torch.sin(torch.arange(20) / 3 + torch.rand(12, 1) * 6).double()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[:8, :-1]), x[:8, 1:])
        loss.backward()
        return loss

    for step in range(8):
        show(step, optimizer.step(closure))
        with torch.no_grad():
            print(F.mse_loss(model(10 * x[8:, :-1]), x[8:, 1:]).item())
    return [model]


@program
def gpt_with_accumulation() -> Models:
    """bf16 autocast, two micro-batches, clipping, groups with and without decay, a warm-up."""
    model = Gpt()
    plain = [p for p in model.parameters() if p.dim() < 2]
    large = [p for p in model.parameters() if p.dim() >= 2]
    optimizer = torch.optim.AdamW([{"params": large}, {"params": plain, "weight_decay": 0}], 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = of_letters(model) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        show(step, loss)
    return [model]


@program
def gpt_compiled() -> Models:
    """An evaluation before training, then a compiled model."""
    model = Gpt()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for step in range(STEPS):
        if step % 8 == 0:
            model.eval()
            with torch.no_grad():
                print("held out:", of_letters(compiled).item())  # type: ignore[arg-type]
            model.train()
        update(optimizer, of_letters(compiled), step)  # type: ignore[arg-type]
    return [model]


@program
def compiled_step() -> Models:
    """The whole step is compiled, as is that of the optimizer."""
    model = mlp(64, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(step, backend="eager")
    for i in range(STEPS):
        x, y = images()
        show(i, compiled(x.flatten(1), y))
    return [model]


@program
def scaled_half() -> Models:
    """fp16 autocast with a scaler, which skips steps."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
    for step in range(STEPS):
        with torch.autocast("cpu", torch.float16):
            loss = of_letters(model)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        show(step, loss)
    return [model]


class Orthogonal(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal, as Muon does."""

    def __init__(self, parameters: Iterator[nn.Parameter] | list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
                x = kept.mul_(0.9).add_(p.grad) / (kept.norm() + 1e-7)
                for _ in range(5):
                    x = 1.5 * x - 0.5 * x @ x.mT @ x
                p.add_(x, alpha=-group["lr"])


@program
def two_optimizers_of_one_model() -> Models:
    model = Gpt()
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers = [Orthogonal(matrices, 0.01), torch.optim.AdamW(others, 1e-3)]
    for step in range(STEPS):
        loss = of_letters(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        show(step, loss)
    return [model]


class Average(nn.Module):
    """Holds the model and a moving average of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online_model, self.ema_model = model, copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        pairs = zip(self.ema_model.parameters(), self.online_model.parameters(), strict=True)
        for mine, p in pairs:
            mine.lerp_(p, 0.1)


@program
def diffusion() -> Models:
    """Noise is predicted; samples come from the average, in eval mode."""
    model = mlp(65, 64, 64)
    average = Average(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(STEPS):
        x, noise, t = images()[0].flatten(1), torch.randn(16, 64), torch.rand(16, 1)
        update(
            optimizer, F.mse_loss(model(torch.cat([x * (1 - t) + noise * t, t], 1)), noise), step
        )
        average.update()
        if step % 8 == 7:
            average.eval()
            with torch.inference_mode():
                print("sample:", average.ema_model(torch.randn(4, 65)).std().item())
            average.train()
    return [average]


@program
def sharpness_aware() -> Models:
    """Two backwards a step, the second at shifted parameters."""
    model = mlp(64, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        x, y = images()
        F.cross_entropy(model(x.flatten(1)), y).backward()
        shifts = [0.05 * F.normalize(p.grad, dim=0) for p in model.parameters()]  # type: ignore[arg-type]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), shifts)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.flatten(1)), y)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), shifts)
        optimizer.step()
        optimizer.zero_grad()
        show(step, loss)
    return [model]


@program
def master_weights() -> Models:
    """The optimizer steps copies in fp32; the model is in bf16."""
    model = mlp(64, 32, 4).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, 1e-3)
    for step in range(STEPS):
        x, y = images()
        loss = F.cross_entropy(model(x.flatten(1).bfloat16()).float(), y)
        loss.backward()
        for p, master in zip(model.parameters(), masters, strict=True):
            assert p.grad is not None
            master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters, strict=True):
                p.copy_(master)
        show(step, loss)
    return [model]


@program
def resumed() -> Models:
    """A checkpoint, and a new optimizer for the rest of the training."""
    model = mlp(64, 32, 4)
    for phase in range(2):
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for step in range(STEPS // 2):
            x, y = images()
            update(optimizer, F.cross_entropy(model(x.flatten(1)), y), step)
        kept = copy.deepcopy({"model": model, "optimizer": optimizer.state_dict()})
        model.load_state_dict(kept["model"].state_dict())
        print(phase, len(kept["optimizer"]["state"]))
    return [model]


class GraphAttention(nn.Module):
    """A layer with parameters of its own, and children."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(inner, outer)))
        self.gate = nn.Parameter(nn.init.xavier_normal_(torch.empty(2, outer)))
        self.leaky, self.softmax = nn.LeakyReLU(0.2), nn.Softmax(1)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        h = x @ self.weight
        scores = self.leaky((h @ self.gate[0])[:, None] + h @ self.gate[1])
        return self.softmax(scores.masked_fill(near == 0, -1e9)) @ h


@program
def graph_attention() -> Models:
    """One batch is all there is; each training step is followed by an evaluation of all nodes."""
    y = torch.randint(3, (40,))
    near = ((y[:, None] == y) & (torch.rand(40, 40) < 0.3)) | torch.eye(40).bool()
    x = F.one_hot(y, 3).float() @ torch.randn(3, 16) + torch.randn(40, 16)
    model = nn.ModuleList([GraphAttention(16, 16), GraphAttention(16, 3)])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def classes() -> Tensor:
        return model[1](F.elu(model[0](x, near)), near)  # type: ignore[no-any-return]

    for step in range(STEPS):
        update(optimizer, F.cross_entropy(classes()[::2], y[::2]), step)
        model.eval()
        with torch.no_grad():
            show(step, F.cross_entropy(classes()[1::2], y[1::2]))
        model.train()
    return [model]


class Codebook(nn.Module):
    """Has codes as a buffer that follows its inputs, and returns integers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: Tensor
        self.register_buffer("codes", torch.randn(16, 8))
        self.entry = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.entry(x)
        chosen = torch.cdist(x, self.codes).argmin(1)
        with torch.no_grad():
            self.codes[chosen] += 0.1 * (x - self.codes[chosen])
        found = self.codes[chosen]
        return x + (found - x).detach(), chosen, F.mse_loss(x, found.detach())


@program
def vector_quantisation() -> Models:
    encoder, book, decoder = mlp(64, 32, 8), Codebook(), mlp(8, 32, 64)
    model = nn.ModuleList([encoder, book, decoder])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x = images()[0].flatten(1)
        found, chosen, commitment = book(encoder(x))
        update(optimizer, F.mse_loss(decoder(found), x) + 0.25 * commitment, step)
    print("codes:", chosen.unique().tolist())
    return [model]


class Experts(nn.Module):
    """Each row goes to one of four experts; the loop calls a method."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(64, 4), nn.Linear(64, 4)
        self.experts = nn.ModuleList(mlp(64, 32, 64) for _ in range(4))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights, chosen = F.softmax(self.router(x), 1).max(1)
        out = x.clone()
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, weights[rows, None] * expert(x[rows]))
        return F.cross_entropy(self.head(out), y)


@program
def experts() -> Models:
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = images()
        update(optimizer, model.loss(x.flatten(1), y), step)
    return [model]


class Spectral(nn.Module):
    """Complex weights of frequencies, behind a table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(20, 16, sparse=True)
        self.weight = nn.Parameter(torch.randn(9, 16, dtype=torch.cfloat) / 4)
        self.out = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        waves = torch.fft.rfft(self.letters(ids), n=16, dim=1) * self.weight
        return self.out(torch.fft.irfft(waves, dim=1)[:, : ids.shape[1]])  # type: ignore[no-any-return]


@program
def spectral() -> Models:
    model = Spectral()
    of_table = torch.optim.SparseAdam(list(model.letters.parameters()), 1e-3)
    of_rest = torch.optim.Adam([model.weight, *model.out.parameters()], 1e-3)
    for step in range(STEPS):
        of_table.zero_grad()
        update(of_rest, of_letters(model), step)
        of_table.step()
    return [model]


@program
def split_backward() -> Models:
    """First the gradient of the input, as a pipeline hands it on; those of weights come later."""
    model = mlp(64, 32, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    parameters = list(model.parameters())
    for step in range(STEPS):
        x, y = images()
        x = x.flatten(1).requires_grad_()
        loss = F.cross_entropy(model(x), y)
        torch.autograd.grad(loss, x, retain_graph=True)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        optimizer.step()
        show(step, loss)
    return [model]


@program
def checkpointed() -> Models:
    """Blocks that run again in the backward, with a dropout."""
    model = nn.ModuleList(nn.Sequential(mlp(64, 64, 64), nn.Dropout(0.1)) for _ in range(3))
    head = nn.Linear(64, 4)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.01, momentum=0.9)
    for step in range(STEPS):
        x, y = images()
        x = x.flatten(1)
        for block in model:
            x = x + checkpoint.checkpoint(block, x, use_reentrant=False)
        update(optimizer, F.cross_entropy(head(x), y), step)
    return [model, head]


@program
def frozen_norms() -> Models:
    """Fine-tuning of the last layer, all in eval mode; then an export for batches of any size."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    model.append(nn.Linear(288, 4)).eval()
    model[:2].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), 0.01)
    for step in range(STEPS):
        x, y = images()
        update(optimizer, F.cross_entropy(model(x), y), step)
    shapes = {"input": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes)
    print("exported:", exported.module()(x[:5]).sum().item())
    return [model]


@program
def quantisation_aware() -> Models:
    """After half of the training, layers are fused and swapped for others."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    for part in range(2):
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        for step in range(STEPS // 2):
            x, y = images()
            update(optimizer, F.cross_entropy(model(x), y), step)
        if part == 0:
            torch.ao.quantization.fuse_modules_qat(model, ["0", "1"], inplace=True)
            torch.ao.quantization.prepare_qat(model, inplace=True)
    return [model]


def digest(models: Models) -> str:
    """What a training leaves behind: all parameters, buffers and states of random generators."""
    found = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            found.update(
                tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
            )
    found.update(torch.get_rng_state().numpy().tobytes())
    found.update(repr((random.getstate(), np.random.get_state())).encode())  # noqa: NPY002
    return found.hexdigest()


if __name__ == "__main__":
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - programs use it
    print(digest(PROGRAMS[sys.argv[1]]()))
