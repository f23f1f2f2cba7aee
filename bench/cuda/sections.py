"""The sections of the benchmark: each yields rows, and asserts the results that it timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import hookstats as hs
from bench.cuda import peers
from bench.cuda.cases import ALL, CHANNELS, CONTENTS, MOMENTS, WHATS, Layout, layouts, values
from bench.cuda.results import Row
from bench.cuda.timing import host_seconds, inputs_for, synchronize, take_turns
from hookstats.hooks.parameters import Batches
from hookstats.kernels import ops
from hookstats.stats import reference, state


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    device: torch.device
    elements: int = 1 << 26
    """Of one tensor: 256 MB in float32, four times the cache of the largest GPUs."""
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

DTYPES = (torch.float32, torch.bfloat16)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sample(scale: Scale, layout: Layout, flat: Tensor) -> peers.Sample:
    return peers.Sample(layout, flat, scale.inputs or inputs_for(flat.nbytes))


def _rows(
    section: str,
    scale: Scale,
    sample: peers.Sample,
    content: str,
    entrants: dict[tuple[str, str], peers.Update | peers.Found],
) -> list[Row]:
    """Times entrants, by peer and what, beside torch.sum, and checks them all."""
    runs = {("torch.sum", ""): peers.torch_sum(sample), **entrants}
    named = {f"{peer} {what}": run.run for (peer, what), run in runs.items()}
    times = take_turns(named, len(sample.xs), scale.rounds, scale.device)
    for run in runs.values():
        run.check()
    floor = median(times["torch.sum "])
    return [
        Row(
            section,
            sample.layout.name,
            peer,
            median(times[f"{peer} {what}"]) * 1e6,
            _short(sample.xs[0].dtype),
            content,
            what,
            sample.bytes,
            floor / median(times[f"{peer} {what}"]),
        )
        for peer, what in runs
    ]


def reading(scale: Scale) -> Iterator[Row]:
    """Every regime, with and without histograms, beside torch.sum of the same tensor."""
    for dtype in DTYPES:
        flat = values("normal", scale.elements, dtype, scale.device)
        for layout in layouts(scale.elements):
            if not (scale.every_layout or layout.name in FEW):
                continue
            sample = _sample(scale, layout, flat)
            entrants = {("update_", what.name): peers.Update(sample, what) for what in WHATS}
            yield from _rows("reading", scale, sample, "normal", entrants)


def skewed(scale: Scale) -> Iterator[Row]:
    """Data that is not normal, whose rate is compared with that on normal data."""
    for dtype in DTYPES:
        for layout in layouts(scale.elements):
            if layout.name not in FEW:
                continue
            normal: dict[str, float] = {}
            for content in CONTENTS:
                flat = values(content, scale.elements, dtype, scale.device)
                sample = _sample(scale, layout, flat)
                entrants = {("update_", what.name): peers.Update(sample, what) for what in WHATS}
                for row in _rows("skewed", scale, sample, content, entrants):
                    if content == "normal":
                        normal[row.what] = row.microseconds
                    if row.peer == "update_" and content != "normal":
                        ratio = normal[row.what] / row.microseconds
                        yield Row(**{**vars(row), "ratio": ratio})


def beside(scale: Scale) -> Iterator[Row]:
    """What else there is for the same questions."""
    for dtype in DTYPES:
        flat = values("normal", scale.elements, dtype, scale.device)
        for layout in layouts(scale.elements):
            if layout.name not in FEW[:3]:
                continue
            sample = _sample(scale, layout, flat)
            entrants: dict[tuple[str, str], peers.Update | peers.Found] = {}
            for what in (MOMENTS, CHANNELS, ALL):
                entrants["update_", what.name] = peers.Update(sample, what)
            entrants["eager", MOMENTS.name] = peers.statistics(sample, MOMENTS, compiled=False)
            compiled = peers.statistics(sample, MOMENTS, compiled=True)
            entrants["torch.compile", MOMENTS.name] = compiled
            if layout.channel_dim == 1 and scale.device.type == "cuda":
                entrants["torch.batch_norm_stats", "mean, var"] = peers.batch_norm_stats(sample)
            if layout.channel_dim is None and dtype == torch.float32:
                name = "64 bins per tensor"
                entrants["torch.histc", name] = peers.histc(sample)
                if scale.device.type == "cuda":
                    try:
                        entrants["cupy.histogram", name] = peers.cupy_histogram(sample)
                    except ImportError:
                        print("gpu-check: no CuPy here, and so no row of it")
            yield from _rows("beside", scale, sample, "normal", entrants)
    # Of a smaller tensor: eager histograms take several times the tensor's memory.
    elements = max(1 << 18, scale.elements // 8)
    layout = next(each for each in layouts(elements) if each.name == "(N, L, 1024)")
    flat = values("normal", elements, torch.float32, scale.device)
    sample = _sample(scale, layout, flat)
    entrants = {("update_", ALL.name): peers.Update(sample, ALL)}
    entrants["eager", ALL.name] = peers.statistics(sample, ALL, compiled=False)
    entrants["torch.compile", ALL.name] = peers.statistics(sample, ALL, compiled=True)
    yield from _rows("beside", scale, sample, "normal", entrants)


def gradients(scale: Scale) -> Iterator[Row]:
    """Parameter gradients of many sizes, 1 KB to the greatest, by one call and by one hook."""
    device, count = scale.device, scale.gradients
    sizes = torch.logspace(10, torch.tensor(scale.greatest_gradient).log2().item(), count, base=2)
    shuffled = sizes[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    shapes = []
    for size in shuffled.tolist():
        numel = int(size) // 4
        rows = 1 << numel.bit_length() // 2  # nearly square, as weights are
        shapes.append((rows, numel // rows))
    elements = [rows * columns for rows, columns in shapes]
    flat = torch.randn(sum(elements), device=device)
    xs = [part.view(shape) for part, shape in zip(flat.split(elements), shapes, strict=True)]
    bins = hs.LogBins(3)

    def empty() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        rows = [len(x) for x in xs]
        moments = state.identity_moments(sum(rows), device).split(rows)
        tallies = state.identity_tallies(sum(rows), device).split(rows)
        counts = torch.zeros(count, bins.slots, dtype=torch.int64, device=device).unbind()
        return list(moments), list(tallies), list(counts)

    lists, calls = empty(), 0
    descriptor = bins.descriptor(device)

    def update(_: int = 0) -> None:
        nonlocal calls
        ops.update_many_(xs, 0, *lists, descriptor, [], None)
        calls += 1

    runs = {"torch.sum": lambda _: flat.sum(), "update_many_": update}
    if device.type == "cuda":
        runs["torch._foreach_norm"] = lambda _: torch._foreach_norm(xs)
    times = take_turns(runs, 2, scale.rounds, device)
    host = host_seconds(update, 1, device)
    expected = empty()
    reference.update_many_(xs, 0, *expected, descriptor, [], None)
    assert torch.equal(torch.cat(lists[1]), torch.cat(expected[1]) * calls)
    assert torch.equal(torch.stack(lists[2]), torch.stack(expected[2]) * calls)
    assert torch.equal(torch.cat(lists[0])[:, 2:4], torch.cat(expected[0])[:, 2:4])
    floor = median(times["torch.sum"])
    for peer, seconds in times.items():
        taken = median(seconds)
        ratio = taken / floor if peer == "update_many_" else None
        yield Row(
            "gradients", "device", peer, taken * 1e6, "float32", bytes=flat.nbytes, ratio=ratio
        )
    yield Row("gradients", "host, lists of tensors", "update_many_", host * 1e6, "float32")

    parameters = nn.ParameterList(nn.Parameter(x, requires_grad=True) for x in xs)
    for parameter, x in zip(parameters, xs, strict=True):
        parameter.grad = x
    with hs.watch(parameters, kinds=("param_grad",), bins=bins) as w:
        batches, groups = Batches(), [list(parameters)]

        def observe() -> None:
            w._parameters.observe(groups, batches)

        observe()
        native = batches.native is not None
        hook = host_seconds(observe, 1, device)
        w.step()
        count_0 = w.latest["0", "param_grad"].count.sum().item()
        assert count_0 == elements[0] * 12, "observations"  # once, ten tries, and the step's own
    yield Row(
        "gradients",
        "host",
        "watch" + " (C++ hooks)" * native,
        hook * 1e6,
        "float32",
        ratio=hook * 1e3,
    )


def host(scale: Scale) -> Iterator[Row]:
    """What the host does for one observation, beside a bare launch."""
    device, calls = scale.device, 200
    launch = 0.0
    if device.type == "cuda":
        launch = host_seconds(lambda: torch.cuda._sleep(1), calls, device)
        yield Row("host", "one launch", "torch.cuda._sleep", launch * 1e6)
    x = torch.randn(64, 64, device=device)
    made = peers.State(64, MOMENTS, device)
    operator = host_seconds(lambda: ops.update_(x, 1, *made.arguments), calls, device)
    yield Row("host", "one call", "update_", operator * 1e6)
    model = nn.Sequential(nn.Identity())
    bare = host_seconds(lambda: model(x), calls, device)
    with hs.watch(model, kinds=("output",), bins=hs.LogBins(3)) as w:
        model(x)
        hooked = host_seconds(lambda: model(x), calls, device)
        w.step()
        assert int(w.latest["0", "output"].count.sum()) == x.numel() * (10 * calls + 1)
    cost = hooked - bare
    yield Row("host", "one observation", "watch", cost * 1e6, ratio=(cost - launch) * 1e6)


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


def transformer(scale: Scale) -> Iterator[Row]:
    """Training steps of two blocks, each Linear's output and its gradient observed."""
    device = scale.device
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = nn.Sequential(_Block(scale.width), _Block(scale.width)).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    length = min(4096, scale.tokens)
    x = torch.randn(scale.tokens // length, length, scale.width, device=device, dtype=dtype)

    def steps(every: int | None) -> float:
        """Seconds a step, of `scale.steps` steps watched so, or not at all."""
        w = None
        if every is not None:
            kinds = ("output", "grad_output")
            w = hs.watch(model, optimizer, kinds, include=nn.Linear, every=every)

        def step() -> None:
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
            optimizer.step()

        for _ in range(every or 1):
            step()
        synchronize(device)
        began = perf_counter()
        for _ in range(scale.steps):
            step()
        synchronize(device)
        seconds = (perf_counter() - began) / scale.steps
        if w is not None:
            assert every is not None
            assert w.latest.step == (scale.steps + every - 1) // every * every
            stats = w.latest["0.qkv", "grad_output"]
            assert int(stats.count.sum()) == scale.tokens * scale.width * 3
            assert all(row.error is None and not row.missing for row in w.coverage())
            w.close()
        return seconds

    times: dict[int | None, list[float]] = {None: [], 1: [], 10: []}
    for _ in range(5):
        for every, seconds in times.items():
            seconds.append(steps(every))
    bare = median(times[None])
    yield Row("transformer", "not watched", "torch", bare * 1e6, _short(dtype))
    for every in (1, 10):
        taken = median(times[every])
        percent = (taken / bare - 1) * 100
        yield Row(
            "transformer", f"every={every}", "watch", taken * 1e6, _short(dtype), ratio=percent
        )


SECTIONS = (reading, gradients, host, transformer, skewed, beside)
"""What is asked of us first, in case that time runs out."""


def free(device: torch.device) -> None:
    """Give back what the last section held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
