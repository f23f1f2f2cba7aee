"""The sections of the benchmark: each yields cases, and asserts the results that it timed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import hookstats as hs
from bench.cuda import peers, tables
from bench.cuda.cases import WHATS, Layout, layouts, values
from bench.cuda.timing import Calls, clock, inputs_for, synchronize
from bench.measure import measure
from bench.measured import Case, Table
from bench.states import BINS, State, What
from bench.turns import Peer, Rounds
from hookstats.hooks.parameters import Batches
from hookstats.kernels import ops

Makers = Mapping[str, Callable[[], Peer]]
"""What makes the peers of a case, as `measure` takes it."""


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    device: torch.device
    elements: int = 1 << 28
    """Of one tensor: 1 GB in float32, beside which what a launch costs at least is nothing."""
    rounds: int = 15
    inputs: int | None = None
    """None for as many as keep each cold."""
    every_layout: bool = True
    """Or else the few that also other things are measured of."""
    gradients: int = 2000
    greatest_gradient: int = 64 << 20  # bytes
    width: int = 4096
    tokens: int = 16384
    steps: int = 10


FEW = ("whole tensor", "(N, L, 1024)", "(N, 256, H, W)", "rows of 4096")
"""A layout of each regime."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _regimes(
    scale: Scale, names: Collection[str] = FEW
) -> Iterator[tuple[str, Layout, torch.dtype]]:
    """The layouts of these names in every dtype, with what each case is called."""
    for short, dtype in DTYPES.items():
        for layout in layouts(scale.elements):
            if layout.name in names:
                yield f"{layout.name} {short}", layout, dtype


def _sample(
    scale: Scale, layout: Layout, dtype: torch.dtype, content: str = "normal", beside: int = 1
) -> peers.Sample:
    """beside: how many samples of that size take turns."""
    flat = values(content, prod(layout.shape), dtype, scale.device)
    return peers.Sample(layout, flat, scale.inputs or inputs_for(flat.nbytes * beside))


def _on_device(scale: Scale, table: Table, name: str, nbytes: int, makers: Makers) -> Case:
    """Times peers that read so many bytes, by the device's clock, and checks them all."""
    rounds, facts = Rounds(0.0, scale.rounds, scale.rounds), {"MB": nbytes / 1e6}
    ticks = clock(scale.device)
    # In two rounds all is compiled and allocated.
    measured = measure(table, name, nbytes / 1e9, makers, rounds, {}, facts, ticks, warm_up=2)
    measured.check()
    return measured.case


def _on_host(table: Table, name: str, calls: int, makers: Makers, rounds: int = 10) -> Case:
    """Times peers that make so many calls, or tell their time themselves, and checks them all."""
    measured = measure(table, name, calls, makers, Rounds(0.0, rounds, rounds))
    measured.check()
    return measured.case


def _updates(sample: peers.Sample) -> dict[str, Callable[[], Peer]]:
    """What is asked of one call, each with update_ and the yardstick."""
    made: dict[str, Callable[[], Peer]]
    made = {tables.SUM: partial(peers.torch_sum, sample.next, sample.xs[0])}
    return made | {name: partial(peers.Update, sample, what) for name, what in WHATS.items()}


def reading(scale: Scale) -> Iterator[Case]:
    """Every regime, with and without histograms, beside torch.sum of the same tensor."""
    every = [layout.name for layout in layouts(scale.elements)]
    for name, layout, dtype in _regimes(scale, every if scale.every_layout else FEW):
        sample = _sample(scale, layout, dtype)
        yield _on_device(scale, tables.READING, name, sample.bytes, _updates(sample))


def sizes(scale: Scale) -> Iterator[Case]:
    """Tensors of 1 MB and more, as they are in small models and in gradients."""
    for megabytes in (1, 4, 16, 64):
        elements = min(scale.elements, megabytes << 18)
        for name in ("whole tensor", "(N, L, 1024)", "rows of 1024"):
            layout = next(each for each in layouts(elements) if each.name == name)
            sample = _sample(scale, layout, torch.float32)
            named = f"{name} fp32, {megabytes} MB"
            yield _on_device(scale, tables.SIZES, named, sample.bytes, _updates(sample))


def skewed(scale: Scale) -> Iterator[Case]:
    """Data that is not normal, beside normal data."""
    for name, layout, dtype in _regimes(scale):
        yield from _by_content(scale, name, layout, dtype)


def _by_content(scale: Scale, name: str, layout: Layout, dtype: torch.dtype) -> Iterator[Case]:
    """Of one regime, whose samples are given back before others are made."""
    contents = tables.CONTENTS
    samples = [_sample(scale, layout, dtype, each, len(contents)) for each in contents]
    for asked, what in WHATS.items():
        makers = [partial(peers.Update, sample, what) for sample in samples]
        named = dict(zip(contents, makers, strict=True))
        yield _on_device(scale, tables.SKEWED[asked], name, samples[0].bytes, named)


def beside(scale: Scale) -> Iterator[Case]:
    """What else there is for the same questions."""
    for name, layout, dtype in _regimes(scale, FEW[:3]):
        sample = _sample(scale, layout, dtype)
        makers = _updates(sample) | _others(sample, tables.MOMENTS)
        if layout.channel_dim == 1:
            makers["torch.batch_norm_stats"] = partial(peers.batch_norm_stats, sample)
        if layout.channel_dim is None and dtype == torch.float32:
            makers["torch.histc"] = partial(peers.histc, sample)
            makers["cupy.histogram"] = partial(peers.cupy_histogram, sample)
        yield _on_device(scale, tables.BESIDE, name, sample.bytes, makers)
    # Of a smaller tensor: eager histograms take several times the tensor's memory.
    elements = max(1 << 18, scale.elements // 8)
    layout = next(each for each in layouts(elements) if each.name == "(N, L, 1024)")
    sample = _sample(scale, layout, torch.float32)
    asked = (tables.SUM, tables.ALL)
    makers = {name: make for name, make in _updates(sample).items() if name in asked}
    makers |= _others(sample, tables.ALL)
    yield _on_device(scale, tables.BESIDE_ALL, f"{layout.name} fp32", sample.bytes, makers)


def _others(sample: peers.Sample, asked: str) -> dict[str, Callable[[], Peer]]:
    """Who else gives all that is asked for."""
    plain = partial(peers.statistics, sample, WHATS[asked])
    return {"eager": plain, "torch.compile": partial(plain, compiled=True)}


def _shapes(scale: Scale) -> list[tuple[int, int]]:
    """Of as many gradients, 1 KB to the greatest, in no order."""
    greatest = torch.tensor(scale.greatest_gradient).log2().item()
    sizes = torch.logspace(10, greatest, scale.gradients, base=2)
    order = torch.randperm(scale.gradients, generator=torch.Generator().manual_seed(0))
    shapes = []
    for size in sizes[order].tolist():
        numel = int(size) // 4
        rows = 1 << numel.bit_length() // 2  # nearly square, as weights are
        shapes.append((rows, numel // rows))
    return shapes


def gradients(scale: Scale) -> Iterator[Case]:
    """Parameter gradients of many sizes, 1 KB to the greatest, by one call and by one hook."""
    shapes = _shapes(scale)
    elements = [rows * columns for rows, columns in shapes]
    flat = torch.randn(sum(elements), device=scale.device)
    xs = [part.view(shape) for part, shape in zip(flat.split(elements), shapes, strict=True)]
    name = f"{len(xs)} of 1 KB to {scale.greatest_gradient >> 10} KB, fp32"
    many = peers.UpdateMany(xs)
    makers: Makers = {
        tables.SUM: partial(peers.torch_sum, lambda: flat, flat),
        "update_many_": lambda: many,
        "torch._foreach_norm": partial(peers.foreach_norm, xs),
    }
    yield _on_device(scale, tables.GRADIENTS, name, flat.nbytes, makers)
    yield _hook(scale, name, xs, many)


def _hook(scale: Scale, name: str, xs: list[Tensor], many: peers.UpdateMany) -> Case:
    """The host's time for the hook of an optimizer's step, beside the operator's call in it."""
    parameters = nn.ParameterList(nn.Parameter(x, requires_grad=True) for x in xs)
    for parameter, x in zip(parameters, xs, strict=True):
        parameter.grad = x
    with hs.watch(parameters, kinds=("param_grad",), bins=BINS) as w:
        batches, groups = Batches(), [list(parameters)]

        def check(made: int) -> None:
            w.step()
            count = w.latest["0", "param_grad"].count.sum().item()
            assert count == xs[0].numel() * (made + 1), "observations"  # the step's own, too

        def observe() -> None:
            w._observers.parameters.observe(groups, batches)

        makers = {
            "update_many_": lambda: Calls(many.run, 1, scale.device, lambda _: many.check()),
            "watch": lambda: Calls(observe, 1, scale.device, check),
        }
        case = _on_host(tables.HOOK, name, 1, makers)
    case.facts["C++ hooks"] = float(batches.native is not None)
    return case


def host(scale: Scale) -> Iterator[Case]:
    """What the host does for one observation, beside a bare launch."""
    device, calls = scale.device, 200
    x = torch.randn(64, 64, device=device)
    made = State(64, What(), device)
    bare, watched = nn.Sequential(nn.Identity()), nn.Sequential(nn.Identity())

    def launch() -> Calls:
        peers.need_gpu(device)
        return Calls(lambda: torch.cuda._sleep(1), calls, device)

    def folded(times: int) -> None:
        assert int(made.statistics()["count"].sum()) == x.numel() * times, "calls"

    with hs.watch(watched, kinds=("output",), bins=BINS) as w:

        def observed(times: int) -> None:
            w.step()
            assert int(w.latest["0", "output"].count.sum()) == x.numel() * times, "observations"

        makers = {
            "not watched": lambda: Calls(lambda: bare(x), calls, device),
            "watch": lambda: Calls(lambda: watched(x), calls, device, observed),
            tables.LAUNCH: launch,
            "update_": lambda: Calls(
                lambda: ops.update_(x, 1, *made.arguments), calls, device, folded
            ),
        }
        yield _on_host(tables.HOST, "64 x 64 fp32", calls, makers)


class _Block(nn.Module):
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


class _Steps:
    """A Peer: training steps of a model, watched every so many steps, or not."""

    def __init__(self, scale: Scale, model: nn.Module, x: Tensor, every: int | None) -> None:
        self._scale = scale
        self._model = model
        self._x = x
        self._every = every
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def prepare(self) -> None:
        self._watch: hs.Watch | None = None
        if self._every is not None:
            kinds = ("output", "grad_output")
            self._watch = hs.watch(
                self._model, self._optimizer, kinds, include=nn.Linear, every=self._every
            )
        self._train(self._every or 1)

    def run(self) -> float:
        """The seconds of all steps, without what becomes of the watch."""
        began = perf_counter()
        self._train(self._scale.steps)
        seconds = perf_counter() - began
        if self._watch is not None:
            self._assert_recorded(self._watch)
            self._watch.close()
        return seconds

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._model(self._x).float().square().mean().backward()
            self._optimizer.step()
        synchronize(self._scale.device)

    def _assert_recorded(self, w: hs.Watch) -> None:
        scale, every = self._scale, self._every or 1
        assert w.latest.step == (scale.steps + every - 1) // every * every
        stats = w.latest["0.qkv", "grad_output"]
        assert int(stats.count.sum()) == scale.tokens * scale.width * 3
        assert all(row.error is None and not row.missing for row in w.coverage())

    def check(self) -> None:
        """Every run asserts what was recorded."""


def transformer(scale: Scale) -> Iterator[Case]:
    """Training steps of two blocks, each Linear's output and its gradient observed."""
    torch.manual_seed(0)
    short = "bf16" if scale.device.type == "cuda" else "fp32"
    device, dtype = scale.device, DTYPES[short]
    model = nn.Sequential(_Block(scale.width), _Block(scale.width)).to(device, dtype)
    length = min(4096, scale.tokens)
    x = torch.randn(scale.tokens // length, length, scale.width, device=device, dtype=dtype)
    every = {"not watched": None, "every=1": 1, "every=10": 10}
    makers = {peer: partial(_Steps, scale, model, x, each) for peer, each in every.items()}
    name = f"{scale.width} wide, {scale.tokens} tokens, {short}"
    yield _on_host(tables.TRANSFORMER, name, scale.steps, makers, rounds=5)


Section = Callable[[Scale], Iterator[Case]]
SECTIONS: tuple[Section, ...] = (reading, gradients, host, transformer, sizes, skewed, beside)
"""What is asked of us first, in case that time runs out."""


def free(device: torch.device) -> None:
    """Give back what the last section held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
