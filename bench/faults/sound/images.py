"""Sound trainings of images: digits of 8 x 8 pixels, and made-up textures."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from bench.faults.models import digits
from bench.faults.sound.program import Session, adam, adamw, epochs, fit, mlp, sgd, sound

Take = Callable[[], tuple[Any, ...]]


def flat() -> tuple[Tensor, Tensor]:
    """The digits as rows of 64 values."""
    images, labels = digits()
    return images.flatten(1), labels


def entropy(model: nn.Module) -> Callable[..., Tensor]:
    """The cross-entropy of a classifier."""
    return lambda x, y: F.cross_entropy(model(x), y)


class Block(nn.Module):
    """A residual block of two convolutions; norm: what follows each."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


def resnet(width: int, blocks: int = 3) -> nn.Sequential:
    """A stem, blocks, and a head."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *(Block(width) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def cnn(width: int, depth: int = 3) -> nn.Sequential:
    """Convolutions with ReLU, pooled, and a head; PyTorch's initialisation."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(width if i else 1, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10))


@sound(1200)
def mlp_batch_of_one(r: Session) -> None:
    model = mlp(64, r.width(32), r.width(32), 10)
    fit(r, model, sgd(model, 0.002), epochs(flat(), 1), entropy(model))


@sound(600)
def last_batch_is_small(r: Session) -> None:
    model = mlp(64, r.width(64), r.width(64), 10)
    fit(r, model, adam(model), epochs(flat(), (64, 96, 128)[r.seed % 3]), entropy(model))


@sound(700)
def cnn_with_last_batch(r: Session) -> None:
    model = cnn(r.width(16))
    fit(r, model, adam(model, 2e-3), epochs(digits(), (64, 128, 256)[r.seed % 3]), entropy(model))


@sound(1000)
def resnet_fits(r: Session) -> None:
    model = resnet(r.width(16))
    fit(r, model, adam(model, 2e-3), epochs(digits(), 16, last=False), entropy(model))


@sound(800)
def resnet_sgd_cosine(r: Session) -> None:
    model = resnet(r.width(16), 2)
    optimizer = sgd(model, 0.1)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, r.steps)
    fit(r, model, optimizer, epochs(digits(), 64), entropy(model), scheduler=schedule)


@sound(500)
def cnn_plateau(r: Session) -> None:
    model = cnn(r.width(16), 5)
    fit(r, model, sgd(model, 0.05), epochs(digits(), 64), entropy(model))


@sound(900)
def deep_plateau(r: Session) -> None:
    model = mlp(64, *[r.width(32)] * 7, 10)
    fit(r, model, sgd(model, 0.05), epochs(flat(), 32), entropy(model))


class Functional(nn.Module):
    """PyTorch's MNIST example: functional ReLUs, dropouts behind them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3)
        self.conv2 = nn.Conv2d(width, 2 * width, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(8 * width, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        x = self.fc2(self.dropout2(F.relu(self.fc1(x))))
        return F.log_softmax(x, dim=1)


@sound(700)
def mnist_example(r: Session) -> None:
    model = Functional(r.width(16))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = lr_scheduler.StepLR(optimizer, 28, 0.7)
    batch = epochs(digits(), 64)
    fit(r, model, optimizer, batch, lambda x, y: F.nll_loss(model(x), y), scheduler=schedule)


@sound(600)
def inputs_with_dropout(r: Session) -> None:
    model = nn.Sequential(nn.Dropout(0.2), mlp(64, r.width(64), 10), nn.Dropout(0.0))
    fit(r, model[:2], sgd(model, 0.1), epochs(flat(), 32), entropy(model[:2]))


class Squeeze(nn.Module):
    """EfficientNet's block: expand, depthwise, squeeze and excite, project."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide, few = 4 * width, max(2, width // 4)
        self.conv_pw, self.bn1 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.conv_dw = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.bn2, self.act = nn.BatchNorm2d(wide), nn.SiLU()
        self.conv_reduce, self.conv_expand = nn.Conv2d(wide, few, 1), nn.Conv2d(few, wide, 1)
        self.conv_pwl, self.bn3 = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn2(self.conv_dw(self.act(self.bn1(self.conv_pw(x))))))
        gate = self.conv_expand(self.act(self.conv_reduce(y.mean((2, 3), keepdim=True))))
        out: Tensor = x + self.bn3(self.conv_pwl(y * gate.sigmoid()))
        return out


def fan_out(model: nn.Module) -> None:
    """EfficientNet's initialisation, as TensorFlow and timm have it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            out = math.prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2 / out) ** 0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Linear):
            nn.init.uniform_(module.weight, -(module.out_features**-0.5), module.out_features**-0.5)


@sound(400)
def efficientnet(r: Session) -> None:
    width = r.width(16)
    model = nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU()),
        *(Squeeze(width) for _ in range(3)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )
    fan_out(model)
    fit(r, model, adam(model, 2e-3), epochs(digits(), 64), entropy(model))


class Scaled(nn.Module):
    """NFNet's block: weights standardised, a gain per block that begins at zero."""

    def __init__(self, width: int, beta: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.gain1 = nn.Parameter(torch.ones(width, 1, 1, 1))
        self.skipinit_gain = nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.full((1,), 0.2))
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv1.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) * self.gain1
        y = F.gelu(F.conv2d(F.gelu(x * self.beta), weight, self.conv1.bias, padding=1))
        return x + self.conv2(y) * self.skipinit_gain * self.alpha


@sound(400)
def nfnet(r: Session) -> None:
    width = r.width(16)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        *(Scaled(width, 1 / (1 + 0.04 * i) ** 0.5) for i in range(5)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )
    fit(r, model, sgd(model, 0.05), epochs(digits(), 64), entropy(model))


class Next(nn.Module):
    """ConvNeXt's block, its branch scaled by 1e-6 at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))
        for layer in (self.dwconv, self.pwconv1, self.pwconv2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


@sound(400)
def convnext(r: Session) -> None:
    width = r.width(16)
    model = nn.Sequential(
        nn.Conv2d(1, width, 2, stride=2),
        *(Next(width) for _ in range(4)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 10)),
    )
    fit(r, model, adamw(model, 2e-3, 0.05), epochs(digits(), 64), entropy(model))


class Vit(nn.Module):
    """A vision transformer with a class token, as timm initialises it."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 2, stride=2)
        self.cls_token = nn.Parameter(1e-6 * torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 17, width), std=0.02))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        out: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return out


@sound(400)
def vit(r: Session) -> None:
    model = Vit(r.width(32))
    optimizer = adamw(model, 1e-3, 0.05)
    warm = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    fit(r, model, optimizer, epochs(digits(), 64), entropy(model), 1.0, warm)


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = mlp(tokens, 2 * tokens, tokens, act=nn.GELU)
        self.channels = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm2(x))
        return out


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, stride=2)
        self.layers = nn.Sequential(*(MixerLayer(16, width) for _ in range(3)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.stem(x).flatten(2).transpose(1, 2)).mean(1))
        return out


@sound(500)
def mixer(r: Session) -> None:
    model = Mixer(r.width(24))
    fit(r, model, adamw(model, 2e-3), epochs(digits(), 32), entropy(model))


@sound(500)
def zero_initialised_branches(r: Session) -> None:
    model = resnet(r.width(16), 4)
    for module in model:
        if isinstance(module, Block):
            module.bn1 = module.bn2 = nn.Identity()  # type: ignore[assignment]
            nn.init.zeros_(module.conv2.weight)
    nn.init.zeros_(model[-1].weight)  # type: ignore[arg-type]
    fit(r, model, sgd(model, 0.05), epochs(digits(), 64), entropy(model))


@sound(500)
def zero_initialised_gamma(r: Session) -> None:
    model = resnet(r.width(16), 4)
    for module in model:
        if isinstance(module, Block):
            nn.init.zeros_(module.bn2.weight)  # type: ignore[arg-type]
    fit(r, model, sgd(model, 0.05), epochs(digits(), 64), entropy(model))


@sound(800)
def noisy_labels(r: Session) -> None:
    images, labels = digits()
    noise = torch.rand(len(labels)) < 0.4
    given = torch.where(noise, torch.randint(10, labels.shape), labels)
    model = resnet(r.width(16), 2)
    fit(r, model, adam(model), epochs((images, given), 32), entropy(model))


@sound(800)
def imbalanced_classes(r: Session) -> None:
    images, labels = flat()
    keep = (labels == 0) | (torch.rand(len(labels)) < 0.012)
    images, labels = images[keep], labels[keep].clamp(max=2)
    model = mlp(64, r.width(32), r.width(32), 3)
    fit(r, model, adam(model), epochs((images, labels), 16), entropy(model))


@sound(400)
def frozen_backbone(r: Session) -> None:
    model = resnet(r.width(16), 2)
    take = epochs(digits(), 64)
    optimizer = adam(model, 2e-3)
    for _ in range(60):
        x, y = take()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for module in model[:-1]:
        module.requires_grad_(False)
        module.eval()
    model[-1] = nn.Linear(model[-1].in_features, 10)  # type: ignore[arg-type]
    fit(r, model, adam(model, 1e-2), take, entropy(model))


@sound(600)
def gradual_unfreezing(r: Session) -> None:
    model = cnn(r.width(16))
    layers = [module for module in model if list(module.parameters())]
    for layer in layers[:-1]:
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(layers[-1].parameters(), 2e-3)

    def unfreeze(step: int) -> None:
        if step in (150, 300, 450):
            layer = layers[-1 - step // 150]
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})

    fit(r, model, optimizer, epochs(digits(), 64), entropy(model), after=unfreeze)


@sound(500)
def distillation(r: Session) -> None:
    both = nn.ModuleDict({"teacher": resnet(16, 2), "student": mlp(64, r.width(32), 10)})
    teacher, student = both["teacher"], both["student"]
    take = epochs(digits(), 64)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            target = (teacher(x) / 2).softmax(1)
        found = student(x.flatten(1))
        return F.cross_entropy(found / 2, target) + F.cross_entropy(found, y)

    fit(r, both, adam(student), take, loss)


def move_to(teacher: nn.Module, student: nn.Module, rate: float) -> None:
    """Move the teacher's weights a little to the student's."""
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            old.lerp_(new, rate)


class Byol(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.online = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, width)
        )
        self.predictor = nn.Sequential(
            nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, width)
        )
        self.target = copy.deepcopy(self.online)

    def forward(self, x: Tensor) -> Tensor:
        a, b = (x + 0.3 * torch.randn_like(x) for _ in range(2))
        with torch.no_grad():
            u, v = F.normalize(self.target(a)), F.normalize(self.target(b))
        p, q = (F.normalize(self.predictor(self.online(each))) for each in (a, b))
        return 4 - 2 * (p * v).sum(1).mean() - 2 * (q * u).sum(1).mean()


@sound(600)
def byol(r: Session) -> None:
    model = Byol(r.width(32))
    optimizer = torch.optim.Adam([*model.online.parameters(), *model.predictor.parameters()], 1e-3)
    take = epochs(flat(), 128)

    def after(step: int) -> None:
        move_to(model.target, model.online, 0.01)

    fit(r, model, optimizer, take, lambda x, y: model(x), after=after)


class WithAverage(nn.Module):
    """A model beside an average of its weights, as trainers keep it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.ema_model = model, copy.deepcopy(model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


@sound(500)
def mean_teacher(r: Session) -> None:
    both = WithAverage(cnn(r.width(16)))
    optimizer = torch.optim.Adam(both.model.parameters(), 2e-3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found = both(x)
        with torch.no_grad():
            target = both.ema_model(x + 0.1 * torch.randn_like(x)).softmax(1)
        return F.cross_entropy(found[:16], y[:16]) + F.mse_loss(found.softmax(1), target)

    def after(step: int) -> None:
        move_to(both.ema_model, both.model, 0.02)

    fit(r, both, optimizer, epochs(digits(), 64), loss, after=after)


@sound(500)
def contrastive(r: Session) -> None:
    model = mlp(64, r.width(64), r.width(64), 32)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        a, b = (F.normalize(model(x + 0.3 * torch.randn_like(x))) for _ in range(2))
        logits = a @ b.T / 0.1
        return F.cross_entropy(logits, torch.arange(len(x)))

    fit(r, model, adam(model), epochs(flat(), 128, last=False), loss)


@sound(500)
def siamese_bce(r: Session) -> None:
    model = nn.Sequential(mlp(64, r.width(32), 16), mlp(32, 32, 1), nn.Sigmoid())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        half = len(x) // 2
        both = torch.cat((model[0](x[:half]), model[0](x[half : 2 * half])), 1)
        same = (y[:half] == y[half : 2 * half]).float()[:, None]
        return F.binary_cross_entropy(model[2](model[1](both)), same)

    fit(r, model, adam(model, 3e-3), epochs(flat(), 128), loss)


class UNet(nn.Module):
    """Two levels; classes of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        out: Tensor = self.out(torch.cat((skip, self.up(self.deep(skip))), 1))
        return out


@sound(500)
def segmentation(r: Session) -> None:
    model = UNet(r.width(8))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        noisy = x + 0.7 * torch.randn_like(x)
        return F.binary_cross_entropy_with_logits(model(noisy), (x > 1).float())

    fit(r, model, adam(model, 2e-3), epochs(digits(), 16), loss)


@sound(500)
def denoising(r: Session) -> None:
    model = nn.Sequential(cnn(r.width(16))[:4], nn.Conv2d(r.width(16), 1, 3, padding=1))
    noisy = lambda x, y: F.mse_loss(model(x + 0.5 * torch.randn_like(x)), x)  # noqa: E731
    fit(r, model, adam(model), epochs(digits(), 8), noisy)


@sound(900)
def warm_restarts(r: Session) -> None:
    model = cnn(r.width(16))
    optimizer = sgd(model, 0.05)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 150)
    fit(r, model, optimizer, epochs(digits(), 64), entropy(model), scheduler=schedule)


@sound(500)
def one_cycle(r: Session) -> None:
    model = resnet(r.width(16), 2)
    optimizer = sgd(model, 0.02)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.4, r.steps)
    fit(r, model, optimizer, epochs(digits(), 64), entropy(model), scheduler=schedule)


@sound(700)
def step_decay(r: Session) -> None:
    model = resnet(r.width(16), 2)
    optimizer = sgd(model, 0.1)
    schedule = lr_scheduler.MultiStepLR(optimizer, [300, 500], 0.1)
    fit(r, model, optimizer, epochs(digits(), 32), entropy(model), scheduler=schedule)


@sound(400)
def whole_data_each_step(r: Session) -> None:
    model = mlp(64, r.width(48), 10, act=nn.Tanh)
    x, y = flat()
    fit(r, model, sgd(model, 0.3, 0.0), lambda: (x[:500], y[:500]), entropy(model))


@sound(400)
def autocast_bf16(r: Session) -> None:
    model = cnn(r.width(16))
    fit(r, model, adam(model, 2e-3), epochs(digits(), 64), entropy(model), autocast=True)


@sound(250)
def batch_of_512(r: Session) -> None:
    model = cnn(r.width(12))
    fit(r, model, adamw(model, 3e-3), epochs(digits(), 512), entropy(model))


@sound(400)
def transient_of_momentum(r: Session) -> None:
    model = mlp(64, r.width(48), r.width(48), 10)
    fit(r, model, sgd(model, 0.2), epochs(flat(), 64), entropy(model))


@sound(500)
def sparse_autoencoder(r: Session) -> None:
    width = 4 * r.width(64)
    encode, decode = nn.Linear(64, width), nn.Linear(width, 64)
    model = nn.ModuleList([encode, decode, nn.Identity()])

    def loss(x: Tensor, y: Tensor) -> Tensor:
        values, places = encode(x).relu().topk(8, 1)
        code = model[2](torch.zeros(len(x), width).scatter(1, places, values))
        return F.mse_loss(decode(code), x)

    fit(r, model, adam(model), epochs(flat(), 64), loss)


@sound(500)
def stochastic_depth(r: Session) -> None:
    model = resnet(r.width(12), 6)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for module in model:
            if not isinstance(module, Block) or torch.rand(()) > 0.2:
                x = module(x)
        return F.cross_entropy(x, y)

    fit(r, model, adam(model, 2e-3), epochs(digits(), 32), loss)


@sound(500)
def several_heads_in_turn(r: Session) -> None:
    model = nn.ModuleDict({"body": mlp(64, r.width(32), r.width(32))})
    model.update({f"head{i}": nn.Linear(r.width(32), 2) for i in range(3)})
    turn = [0]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        turn[0] += 1
        i = turn[0] % 3
        return F.cross_entropy(model[f"head{i}"](model["body"](x).relu()), (y >> i) & 1)

    fit(r, model, adam(model), epochs(flat(), 32), loss)


@sound(600)
def validated_now_and_then(r: Session) -> None:
    model = nn.Sequential(nn.Flatten(), mlp(64, r.width(64), 10), nn.Dropout(0.0))
    model.insert(2, nn.Dropout(0.5)) if r.seed % 2 else None
    x, y = digits()
    optimizer = adam(model)
    take = epochs((x[:1400], y[:1400]), 64)
    w = r.start(model, optimizer)
    for step in range(r.steps):
        images, labels = take()
        value = F.cross_entropy(model[:2](images), labels)
        w.log({"train/loss": value})
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                w.log({"val/loss": F.cross_entropy(model[:2](x[1400:]), y[1400:])})
            model.train()


@sound(6000, long=True)
def resnet_for_long(r: Session) -> None:
    model = resnet(r.width(12), 2)
    optimizer = sgd(model, 0.05)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, r.steps)
    fit(r, model, optimizer, epochs(digits(), 32), entropy(model), scheduler=schedule)
