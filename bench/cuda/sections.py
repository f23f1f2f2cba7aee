"""The sections of the benchmark: each yields cases, and asserts the results that it timed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

import hookstats as hs
from bench.cuda import peers, tables
from bench.cuda.cases import WHATS, Layout, Scale, layouts, values
from bench.cuda.timing import Calls, clock, inputs_for
from bench.cuda.trainings import PEERS, Training, jobs, makers
from bench.measure import Case, Table, measure
from bench.states import BINS, State, What
from bench.turns import Peer, Rounds
from hookstats.kernels import ops

Makers = Mapping[str, Callable[[], Peer]]
"""What makes the peers of a case, as `measure` takes it."""


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
    with hs.watch(parameters, kinds=("param_grad",), every=1, bins=BINS) as w:
        known: list[object] = [None]  # the C++ half, once there is one

        def check(made: int) -> None:
            w.step()
            count = w.latest["0", "param_grad"].count.sum().item()
            assert count == xs[0].numel() * (made + 1), "observations"  # the step's own, too

        def observe() -> None:
            known[0] = w._observers.parameters.observe([list(parameters)], known[0])

        makers = {
            "update_many_": lambda: Calls(many.run, 1, scale.device, lambda _: many.check()),
            "watch": lambda: Calls(observe, 1, scale.device, check),
        }
        case = _on_host(tables.HOOK, name, 1, makers)
    case.facts["C++ hooks"] = float(known[0] is not None)
    return case


def host(scale: Scale) -> Iterator[Case]:
    """What the host does for one observation, beside a bare launch: of one of many modules, as the
    hooks of the model itself take longer."""
    device, modules, forwards = scale.device, 50, 4
    calls = modules * forwards
    x = torch.randn(64, 64, device=device)
    made = State(64, What(), device)
    bare, watched = (nn.Sequential(*(nn.Identity() for _ in range(modules))) for _ in range(2))

    def launch() -> Calls:
        peers.need_gpu(device)
        return Calls(lambda: torch.cuda._sleep(1), calls, device)

    def accumulated(times: int) -> None:
        assert int(made.statistics()["count"].sum()) == x.numel() * times, "calls"

    with hs.watch(watched, kinds=("output",), every=1, bins=BINS) as w:

        def observed(times: int) -> None:
            w.step()
            assert int(w.latest["0", "output"].count.sum()) == x.numel() * times, "observations"

        makers = {
            "not watched": lambda: Calls(lambda: bare(x), forwards, device),
            "watch": lambda: Calls(lambda: watched(x), forwards, device, observed),
            tables.LAUNCH: launch,
            "update_": lambda: Calls(
                lambda: ops.update_(x, 1, *made.arguments), calls, device, accumulated
            ),
        }
        yield _on_host(tables.HOST, "64 x 64 fp32", calls, makers)


def _training(scale: Scale, name: str) -> Iterator[Case]:
    """The steps of a training, and whatever looks into it."""
    job = jobs(scale)[name]
    rounds = Rounds(0.0, 2, 2) if scale.small else Rounds(0.0, 20, 20)
    special = {name: Rounds(0.0, 2, 2) for name, peer in PEERS.items() if peer.slow}
    measured = measure(tables.TRAINING, name, 1, makers(job, scale), rounds, special)
    case = measured.case
    for peer, training in measured.peers.items():
        assert isinstance(training, Training)
        case.own[peer] = training.facts()
        training.detach()
    yield case


def gpt(scale: Scale) -> Iterator[Case]:
    """A language model, bf16 autocast."""
    yield from _training(scale, "GPT 124M")


def resnet(scale: Scale) -> Iterator[Case]:
    """Convolutions, channels last."""
    yield from _training(scale, "ResNet-50")


def mlp(scale: Scale) -> Iterator[Case]:
    """Many small layers, which the host cannot ask for in time."""
    yield from _training(scale, "100-layer MLP")


def vit(scale: Scale) -> Iterator[Case]:
    """A vision transformer."""
    yield from _training(scale, "ViT-B/16")


def compiled(scale: Scale) -> Iterator[Case]:
    """The language model, compiled."""
    yield from _training(scale, "GPT 124M, compiled")


Section = Callable[[Scale], Iterator[Case]]
PARTS: dict[str, tuple[Section, ...]] = {
    "kernels": (reading, gradients, host, sizes, skewed, beside),
    "trainings": (gpt, resnet, mlp, vit, compiled),
}
"""The sections, those that we are asked for first before others, in case that time runs out."""


def free(device: torch.device) -> None:
    """Give back what the last section held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
