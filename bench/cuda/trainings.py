"""The trainings whose steps are timed, and the peers of each: whatever looks into a training."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import hookstats as hs
from bench import eager
from bench.cuda.cases import Scale
from bench.cuda.timing import synchronize
from bench.measure import required
from bench.states import BINS

SETTLED = 100
"""Steps after which `every="auto"` has chosen which steps it records."""
MOST_ELEMENTS = 1 << 27
"""Of a tensor that eager torch looks at: that takes many times the tensor's memory."""


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.is_causal = is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A language model as nanoGPT's."""

    def __init__(self, tokens: int, length: int, width: int, blocks: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, True) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.token(x) + self.place(places))))
        return logits.flatten(0, 1)


class Vit(nn.Module):
    """A vision transformer of patches of 16 x 16; the mean of all is classified."""

    def __init__(self, side: int, width: int, blocks: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Parameter(torch.randn(1, (side // 16) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, False) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        classes: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return classes


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        first, second = _conv(inputs, inner, 1), _conv(inner, inner, 3, stride)
        layers = [*first, nn.ReLU(), *second, nn.ReLU(), *_conv(inner, 4 * inner, 1)]
        self.layers, self.relu = nn.Sequential(*layers), nn.ReLU()
        is_same = inputs == 4 * inner and stride == 1
        self.skip = nn.Sequential(*([] if is_same else _conv(inputs, 4 * inner, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.layers(x) + self.skip(x))
        return y


def resnet(depths: tuple[int, ...]) -> nn.Module:
    """ResNet-50 with depths 3, 4, 6 and 3."""
    made: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            made.append(Bottleneck(inputs, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            inputs = 4 * (64 << stage)
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def mlp(width: int, layers: int) -> nn.Module:
    """Linear layers of one width, with ReLUs between them."""
    hidden = chain.from_iterable((nn.Linear(width, width), nn.ReLU()) for _ in range(layers - 1))
    model = nn.Sequential(*hidden, nn.Linear(width, width))
    for module in model:
        if isinstance(module, nn.Linear):  # or nothing gets through
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


@dataclass(frozen=True)
class Job:
    """A training."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    """Inputs and targets."""
    autocast: bool = True
    """Whether it computes in bf16 what autocast does."""
    compiled: bool = False


def jobs(scale: Scale) -> dict[str, Job]:
    """The trainings by name; small ones at a small scale."""
    small = scale.small
    tokens, length, images, side = (64, 16, 2, 32) if small else (50304, 1024, 64, 224)
    sizes = (16, 1) if small else (768, 12)

    def text() -> tuple[Tensor, Tensor]:
        x = torch.randint(tokens, (2 if small else 12, length))
        return x, x.roll(-1, 1).flatten()

    def pictures() -> tuple[Tensor, Tensor]:
        x = torch.randn(images, 3, side, side)
        return x.contiguous(memory_format=torch.channels_last), torch.randint(1000, (images,))

    width, layers = (16, 4) if small else (512, 100)

    def vectors() -> tuple[Tensor, Tensor]:
        return torch.randn(256, width), torch.randint(width, (256,))

    gpt = Job(partial(Gpt, tokens, length, *sizes), text)
    return {
        "GPT 124M": gpt,
        "ResNet-50": Job(partial(resnet, (1, 1) if small else (3, 4, 6, 3)), pictures),
        "100-layer MLP": Job(partial(mlp, width, layers), vectors, autocast=False),
        "ViT-B/16": Job(partial(Vit, side, *sizes), pictures),
        "GPT 124M, compiled": Job(gpt.model, gpt.batch, compiled=True),
    }


class Training:
    """A Peer: the steps of a training that nobody looks into."""

    warm_up = 5
    slow = False
    """Whether one step at a time is enough."""

    def __init__(self, job: Job, scale: Scale) -> None:
        self.device = scale.device
        self.steps = 1 if self.slow else scale.steps
        before = self._allocated()
        torch.manual_seed(0)
        self.model = job.model().to(self.device, memory_format=torch.channels_last)
        self._x, self._y = (part.to(self.device) for part in job.batch())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self._autocast = job.autocast
        self.attach()
        self._called = torch.compile(self.model) if job.compiled else self.model
        self._train(2 if scale.small else self.warm_up)
        self._own = self._allocated() - before
        self._host, self._cpu, self._peak = [0.0], [0.0], 0

    def attach(self) -> None:
        """Begin to look into the model."""

    def after_backward(self) -> None:
        """What is done in every step and is no hook."""

    def settle(self) -> None:
        """Wait for what is done in the background."""

    def detach(self) -> None:
        """End it, and assert what was found."""

    def prepare(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def run(self) -> float:
        """The seconds of a step, without what is done in the background by then."""
        before, cpu = self._allocated(), process_time()
        began = perf_counter()
        for _ in range(self.steps):
            self._step()
        asked = perf_counter()
        synchronize(self.device)
        ended = perf_counter()
        self.settle()
        self._host.append((asked - began) / self.steps)
        self._cpu.append((process_time() - cpu) / self.steps)
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) - before
            self._peak = max(self._peak, self._own + peak)
        return (ended - began) / self.steps

    def check(self) -> None:
        """`detach` asserts what was found."""

    def facts(self) -> dict[str, float]:
        """What a step takes beside its time: the host's until all is asked for, the CPU time of
        all threads, and the device's memory at most."""
        found = {"host ms": min(self._host[1:]) * 1e3, "CPU ms": min(self._cpu[1:]) * 1e3}
        return found | {"peak MB": self._peak / 1e6}

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
        synchronize(self.device)
        self.settle()

    def _step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            loss = cross_entropy(self._called(self._x), self._y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.after_backward()
        self.optimizer.step()


class Watched(Training):
    """Recorded by `watch`, every step, into memory."""

    options: Mapping[str, Any] = {"every": 1}

    def attach(self) -> None:
        self._watch = hs.watch(self.model, self.optimizer, **self.options)

    def settle(self) -> None:
        assert len(self._watch.latest) > 0

    def detach(self) -> None:
        assert all(row.error is None and not row.missing for row in self._watch.coverage())
        self._watch.close()


class WatchedByDefault(Watched):
    """As it comes; as many steps at once as have a recorded one among them."""

    warm_up = SETTLED
    options: Mapping[str, Any] = {}

    def prepare(self) -> None:
        super().prepare()
        self.steps = max(self.steps, min(64, self._watch._when.every))


class WatchedStored(Watched):
    """Recorded by `watch`, every step, into a run directory."""

    def attach(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._watch = hs.watch(self.model, self.optimizer, out=self._directory.name, every=1)

    def detach(self) -> None:
        super().detach()
        assert len(hs.open_run(self._directory.name).steps) > 0
        self._directory.cleanup()


class Wandb(Training):
    """`wandb.watch`, offline, by default. A process has one run, into which all of these log."""

    idx, log_freq = 0, 1000

    def attach(self) -> None:
        wandb = required("wandb")
        self._directory = tempfile.TemporaryDirectory()
        settings = wandb.Settings(console="off", x_disable_stats=True, silent=True)
        self._run = wandb.run or wandb.init(
            mode="offline", dir=self._directory.name, settings=settings
        )
        self._run.watch(self.model, log_freq=self.log_freq, idx=self.idx)
        self._logged = 0

    def after_backward(self) -> None:
        self._run.log({"step": self._logged})
        self._logged += 1

    def detach(self) -> None:
        assert self._logged > 0
        self._run.finish()  # does nothing the second time
        self._directory.cleanup()


class WandbEachStep(Wandb):
    """Every step."""

    idx, log_freq = 1, 1


class EagerHooks(Training):
    """The statistics of `watch` of modules without children, by eager torch in hooks."""

    slow = True
    warm_up = 1
    statistics: Callable[..., eager.Statistics] = staticmethod(eager.statistics)

    def attach(self) -> None:
        self._found: dict[tuple[str, str], eager.Statistics] = {}
        for name, module in self.model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_hook(partial(self._see, name))

    def _see(self, name: str, module: nn.Module, args: object, output: Tensor) -> None:
        self._observe(name, "output", output)
        observe = partial(self._observe, name, "grad_output")
        output.register_hook(observe)  # type: ignore[no-untyped-call]

    def _observe(self, name: str, kind: str, x: Tensor) -> None:
        if x.numel() <= MOST_ELEMENTS:
            axis = 1 if x.dim() == 4 else x.dim() - 1
            self._found[name, kind] = self.statistics(x.detach(), axis, bins=BINS)

    def detach(self) -> None:
        for found in self._found.values():
            assert int(found["count"].sum()) == int(found["counts"].sum()) > 0


class CompiledHooks(EagerHooks):
    """The same, by what torch.compile makes of it for each shape."""

    slow = False
    warm_up = 3

    def attach(self) -> None:
        self.statistics = eager.compiled()
        super().attach()

    def _step(self) -> None:
        with torch._dynamo.config.patch(recompile_limit=64):
            super()._step()


class TorchInstruments(Training):
    """torchinstruments of modules without children, in every step."""

    def attach(self) -> None:
        self._library = required("torchinstruments")
        self._directory = tempfile.TemporaryDirectory()
        self._library.inject_observer(
            self.model,
            interval=timedelta(microseconds=1),
            output_dir=self._directory.name,
            selector=self._library.leaf_modules(),
        )

    def detach(self) -> None:
        self._library.remove_observer(self.model)
        self._directory.cleanup()


PEERS: dict[str, type[Training]] = {
    "not watched": Training,
    "default": WatchedByDefault,
    "every=1": Watched,
    "every=1, stored": WatchedStored,
    "wandb, log_freq=1000": Wandb,
    "wandb, log_freq=1": WandbEachStep,
    "torchinstruments": TorchInstruments,
    "torch.compile in hooks": CompiledHooks,
    "eager hooks": EagerHooks,
}
OF_COMPILED = ("not watched", "default", "every=1")
"""The peers of a training that is compiled, which takes most of the time."""


def makers(job: Job, scale: Scale) -> dict[str, Callable[[], Training]]:
    """Who takes part in a training."""
    names = OF_COMPILED if job.compiled else PEERS
    return {name: partial(PEERS[name], job, scale) for name in names}
