"""makers(): the peers of training steps of two transformer blocks: whatever looks into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import hookstats as hs
from bench import eager
from bench.cuda.cases import Scale
from bench.cuda.timing import synchronize
from bench.states import BINS
from bench.turns import Peer

LENGTH = 4096
"""Tokens of a sequence, at most."""


class Block(nn.Module):
    """A transformer's block, without norms: they are not what is watched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(gelu(self.up(x)))


def blocks(scale: Scale) -> nn.Module:
    """Two of them, in bf16 on a GPU."""
    torch.manual_seed(0)
    made = nn.Sequential(Block(scale.width), Block(scale.width))
    return made.to(scale.device, scale.dtype)


class Steps:
    """A Peer: training steps of a model that nobody looks into."""

    def __init__(self, scale: Scale, model: nn.Module, x: Tensor, steps: int | None = None) -> None:
        """steps: how many are timed, for the `scale.steps` that are reported."""
        self.scale = scale
        self.model = model
        self.steps = steps or scale.steps
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        self._x = x

    def attach(self) -> None:
        """Begin to look into the model."""

    def detach(self) -> None:
        """End it, and assert what was found in the steps."""

    def prepare(self) -> None:
        self.attach()
        self._train(1)

    def run(self) -> float:
        """The seconds of all steps, without what becomes of what was found."""
        began = perf_counter()
        self._train(self.steps)
        seconds = perf_counter() - began
        self.detach()
        return seconds * self.scale.steps / self.steps

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self._x).float().square().mean().backward()
            self.optimizer.step()
        synchronize(self.scale.device)

    def check(self) -> None:
        """Every run asserts what was found."""


class Watched(Steps):
    """Watched every so many steps."""

    def __init__(self, scale: Scale, model: nn.Module, x: Tensor, every: int) -> None:
        super().__init__(scale, model, x)
        self._every = every

    def attach(self) -> None:
        kinds = ("output", "grad_output")
        self._watch = hs.watch(
            self.model, self.optimizer, kinds=kinds, include=nn.Linear, every=self._every
        )

    def prepare(self) -> None:
        self.attach()
        self._train(self._every)  # so that every run begins with a step that is recorded

    def detach(self) -> None:
        scale, every, w = self.scale, self._every, self._watch
        assert w.latest.step == (scale.steps + every - 1) // every * every
        stats = w.latest["0.qkv", "grad_output"]
        assert int(stats.count.sum()) == scale.tokens * scale.width * 3
        assert all(row.error is None and not row.missing for row in w.coverage())
        w.close()


class EagerHooks(Steps):
    """The same statistics of the same tensors, by eager torch in hooks."""

    statistics: Callable[..., eager.Statistics] = staticmethod(eager.statistics)

    def attach(self) -> None:
        self._found: dict[tuple[str, str], eager.Statistics] = {}
        linears = ((n, m) for n, m in self.model.named_modules() if isinstance(m, nn.Linear))
        self._hooks = [m.register_forward_hook(partial(self._see, n)) for n, m in linears]

    def _see(self, name: str, module: nn.Module, args: object, output: Tensor) -> None:
        self._observe(name, "output", output)
        output.register_hook(partial(self._observe, name, "grad_output"))

    def _observe(self, name: str, kind: str, x: Tensor) -> None:
        self._found[name, kind] = self.statistics(x.detach(), 2, bins=BINS)

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        assert len(self._found) == 2 * len(self._hooks) > 0
        found = self._found["0.qkv", "grad_output"]
        elements = self.scale.tokens * self.scale.width * 3
        assert int(found["count"].sum()) == int(found["counts"].sum()) == elements


class CompiledHooks(EagerHooks):
    """The same, by what torch.compile makes of it for each shape."""

    def __init__(self, scale: Scale, model: nn.Module, x: Tensor, steps: int) -> None:
        super().__init__(scale, model, x, steps)
        torch.compiler.reset()
        self.statistics = torch.compile(eager.statistics, dynamic=False)

    def _train(self, steps: int) -> None:
        with torch._dynamo.config.patch(recompile_limit=64):
            super()._train(steps)


Makers = Mapping[str, Callable[[], Peer]]


def makers(scale: Scale) -> tuple[str, Makers]:
    """What the case is called, and who takes part."""
    model = blocks(scale)
    length = min(LENGTH, scale.tokens)
    shape = (scale.tokens // length, length, scale.width)
    x = torch.randn(shape, device=scale.device, dtype=scale.dtype)
    made: Makers = {
        "not watched": partial(Steps, scale, model, x),
        "every=1": partial(Watched, scale, model, x, 1),
        "every=10": partial(Watched, scale, model, x, 10),
        "torch.compile in hooks": partial(CompiledHooks, scale, model, x, 2),
        "eager hooks": partial(EagerHooks, scale, model, x, 1),
    }
    short = {torch.bfloat16: "bf16", torch.float32: "fp32"}[scale.dtype]
    return f"{scale.width} wide, {scale.tokens} tokens, {short}", made
