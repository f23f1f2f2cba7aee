"""Sound trainings of models that generate, compress or play against each other."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.faults.models import Vae, digits, divergence
from bench.faults.sound.images import flat
from bench.faults.sound.program import Session, adam, epochs, fit, mlp, sound


def pixels() -> tuple[Tensor, Tensor]:
    """The digits as rows of 64 values between 0 and 1."""
    x, y = flat()
    return (x - x.min()) / (x.max() - x.min()), y


@sound(700)
def vae(r: Session) -> None:
    model = Vae(r.width(64), 8)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out, mu, logvar = model(x)
        fit_of = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)
        return fit_of + divergence(mu, logvar)

    fit(r, model, adam(model, 2e-3), epochs(pixels(), 64), loss)


@sound(600)
def vae_warm_up(r: Session) -> None:
    model = Vae(r.width(48), 4)
    steps = [0]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        steps[0] += 1
        out, mu, logvar = model(x)
        weight = min(1.0, steps[0] / 300) * 0.02
        return F.mse_loss(out, x) * 4 + weight * divergence(mu, logvar)

    fit(r, model, adam(model, 2e-3), epochs(flat(), 32), loss)


@sound(500)
def bounded_autoencoder(r: Session) -> None:
    model = nn.Sequential(mlp(64, r.width(48), 12), nn.Tanh(), mlp(12, r.width(48), 64), nn.Tanh())
    x, _ = flat()
    signs = torch.where(x > 0, 1.0, -1.0)
    fit(r, model, adam(model, 3e-3), epochs((signs,), 32), lambda x: F.mse_loss(model(x), x))


class Both(nn.Module):
    """A generator and a discriminator."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.G, self.D = generator, discriminator


def play(r: Session, both: Both, noise: int, lr: float, batch: int, critic: int = 1) -> None:
    """The usual loop of a GAN; both optimizers are given to the watch."""
    G, D = both.G, both.D
    opt_d = torch.optim.Adam(D.parameters(), lr, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(G.parameters(), lr, betas=(0.5, 0.999))
    w = r.start(both, [opt_d, opt_g])
    images, _ = digits()
    take = epochs((images / images.abs().max(),), batch, last=False)
    shape = next(D.parameters()).dim()
    bce = F.binary_cross_entropy_with_logits
    for step in range(r.steps):
        (real,) = take()
        real = real if shape == 4 else real.flatten(1)
        z = torch.randn(len(real), noise) if shape != 4 else torch.randn(len(real), noise, 1, 1)
        fake = G(z)
        a, b = D(real).flatten(), D(fake.detach()).flatten()
        d_loss = bce(a, torch.ones_like(a)) + bce(b, torch.zeros_like(b))
        w.log(d_loss=d_loss)
        opt_d.zero_grad()
        d_loss.backward()  # type: ignore[no-untyped-call]
        opt_d.step()
        if step % critic:
            continue
        c = D(fake).flatten()
        g_loss = bce(c, torch.ones_like(c))
        w.log(g_loss=g_loss)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()


@sound(700)
def gan(r: Session) -> None:
    G = nn.Sequential(mlp(16, r.width(64), r.width(64), 64), nn.Tanh())
    D = mlp(64, r.width(64), r.width(64), 1, act=lambda: nn.LeakyReLU(0.2))
    play(r, Both(G, D), 16, 2e-4, 64)


def published(module: nn.Module) -> None:
    """DCGAN's initialisation."""
    name = type(module).__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)  # type: ignore[arg-type]
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)  # type: ignore[arg-type]
        nn.init.zeros_(module.bias)  # type: ignore[arg-type]


@sound(500)
def dcgan(r: Session) -> None:
    w = r.width(8)
    G = nn.Sequential(
        *(nn.ConvTranspose2d(16, 4 * w, 2, 1, 0, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU()),
        *(nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU()),
        *(nn.ConvTranspose2d(2 * w, 1, 4, 2, 1, bias=False), nn.Tanh()),
    )
    D = nn.Sequential(
        *(nn.Conv2d(1, w, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(2 * w, 1, 2, 1, 0, bias=False),),
    )
    G.apply(published)
    D.apply(published)
    play(r, Both(G, D), 16, 2e-4, 64)


@sound(500)
def gan_of_several_critics(r: Session) -> None:
    G = nn.Sequential(mlp(16, r.width(48), 64), nn.Tanh())
    D = mlp(64, r.width(48), r.width(48), 1, act=lambda: nn.LeakyReLU(0.2))
    play(r, Both(G, D), 16, 3e-4, 32, critic=4)


@sound(400)
def wgan_penalty(r: Session) -> None:
    both = Both(mlp(8, r.width(48), 64), mlp(64, r.width(48), 1))
    G, D = both.G, both.D
    opt_d, opt_g = (torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.9)) for m in (D, G))
    w = r.start(both, [opt_d, opt_g])
    take = epochs(flat(), 64, last=False)
    for _ in range(r.steps):
        x, _ = take()
        fake = G(torch.randn(64, 8))
        mixed = x + torch.rand(64, 1) * (fake.detach() - x)
        mixed.requires_grad_(True)
        (slope,) = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        d_loss = D(fake.detach()).mean() - D(x).mean() + 10 * penalty
        w.log(loss_critic=d_loss)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = -D(fake).mean()
        w.log(loss_generator=g_loss)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()


class Denoiser(nn.Module):
    """An MLP over an image and a time, its last layer zero at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.time = nn.Linear(64, width), nn.Linear(32, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(width), "mlp": mlp(width, 2 * width, width)})
            for _ in range(3)
        )
        self.out = nn.Linear(width, 64)
        for block in self.blocks:
            nn.init.zeros_(block["mlp"][2].weight)  # type: ignore[index,arg-type]
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(16) / 16)
        hidden = self.enter(x) + self.time(torch.cat((angles.sin(), angles.cos()), 1))
        for block in self.blocks:
            hidden = hidden + block["mlp"](block["norm"](hidden))  # type: ignore[index]
        out: Tensor = self.out(hidden)
        return out


@sound(800)
def diffusion(r: Session) -> None:
    model = Denoiser(r.width(64))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        t, noise = torch.randint(1000, (len(x),)), torch.randn_like(x)
        share = kept[t][:, None]
        return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t.float()), noise)

    fit(r, model, adam(model), epochs(flat(), 64), loss)


class Wide(nn.Module):
    """A small UNet of convolutions with group norms; branches and the last layer begin at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.zeros = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.out = nn.Conv2d(width, 1, 3, padding=1)
        for layer in [*self.zeros, self.out]:
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden, time = self.enter(x), self.time(t[:, None])[..., None, None]
        for norm, conv, zero in zip(self.norms, self.convs, self.zeros, strict=True):
            hidden = hidden + zero(F.silu(conv(F.silu(norm(hidden))) + time))
        out: Tensor = self.out(F.silu(hidden))
        return out


@sound(500)
def flow_matching(r: Session) -> None:
    model = Wide(r.width(16))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        t, noise = torch.rand(len(x)), torch.randn_like(x)
        at = t[:, None, None, None]
        return F.mse_loss(model(at * x + (1 - at) * noise, t), x - noise)

    fit(r, model, adam(model, 2e-3), epochs(digits(), 32), loss)


class Coupling(nn.Module):
    """RealNVP's layer: half of the values scale and move the other half."""

    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.net, self.flip = mlp(32, width, 64, act=nn.Tanh), flip
        nn.init.zeros_(self.net[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.net[2].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)[:: -1 if self.flip else 1]
        scale, shift = self.net(a).chunk(2, 1)
        scale = scale.tanh()
        b = b * scale.exp() + shift
        return torch.cat((b, a) if self.flip else (a, b), 1), scale.sum(1)


@sound(600)
def normalising_flow(r: Session) -> None:
    model = nn.ModuleList(Coupling(r.width(48), bool(i % 2)) for i in range(4))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        x, total = x + 0.1 * torch.randn_like(x), torch.zeros(())
        for layer in model:
            x, log = layer(x)
            total = total + log
        return (0.5 * x.square().sum(1) - total).mean() / 64

    fit(r, model, adam(model), epochs(flat(), 64), loss)


@sound(500)
def vector_quantised(r: Session) -> None:
    encode, decode = mlp(64, r.width(48), 32), mlp(32, r.width(48), 64)
    book = nn.Embedding(32, 8)
    nn.init.uniform_(book.weight, -1 / 32, 1 / 32)
    model = nn.ModuleDict({"encode": encode, "decode": decode, "book": book})

    def loss(x: Tensor, y: Tensor) -> Tensor:
        code = encode(x).view(-1, 8)
        nearest = book(torch.cdist(code, book.weight).argmin(1))
        straight = code + (nearest - code).detach()
        commit = F.mse_loss(nearest, code.detach()) + 0.25 * F.mse_loss(code, nearest.detach())
        return F.mse_loss(decode(straight.view(len(x), 32)), x) + commit

    fit(r, model, adam(model), epochs(flat(), 64), loss)
