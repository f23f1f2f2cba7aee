"""hookstats::update_ and its reference, held to the oracle; and what the dispatcher makes of it."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.capabilities import CAPABILITIES
from support.devices import on_cuda, on_gpu
from support.oracle import DTYPES, FLOATS, INTEGERS, State, accumulate, check
from support.paths import python_path
from support.values import LINEAR, LOG, MEANS, STDS, check_sample, layouts, normal, of_dtype
from torch import Tensor

import hookstats
from hookstats.kernels import ops
from hookstats.stats import reference, state
from hookstats.stats.bins import Bins, LogBins

UPDATES = [
    pytest.param(ops.update_, id="op"),
    pytest.param(on_cuda(ops.update_), id="cuda", marks=on_gpu),
    pytest.param(reference.update_, id="reference", marks=pytest.mark.check),
]
SIZES = (0, 1, 2, 31, 32, 33, 100_000)

Update = Callable[..., None]


pytestmark = pytest.mark.usefixtures("one_thread")


def same_bits(one: State, two: State) -> bool:
    pairs = zip(one, two, strict=True)
    return all(
        (a is None and b is None)
        or (
            a is not None
            and b is not None
            and torch.equal(a.view(torch.int64), b.view(torch.int64))
        )
        for a, b in pairs
    )


@pytest.mark.check
@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_accuracy(update: Update, dtype: torch.dtype, mean: float, std: float) -> None:
    """Where a dtype cannot hold the values, they are infinities or NaN, and counted."""
    for n in SIZES if update is not reference.update_ else SIZES[:-1]:
        for x, channel_dim in layouts((normal(2, n, seed=n) * std + mean).to(dtype)):
            check(accumulate(update, x, channel_dim), x, channel_dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_every_dtype_in_every_layout(update: Update, dtype: torch.dtype) -> None:
    for n in (1, 33, 1000):
        for x, channel_dim in layouts(of_dtype(dtype, 5, n)):
            got = accumulate(update, x, channel_dim, LINEAR, LOG)
            check(got, x, channel_dim, LINEAR, LOG)
            got = accumulate(update, x, channel_dim, LOG, LINEAR)
            check(got, x, channel_dim, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float16, torch.int16),
        (torch.bfloat16, torch.int16),
        (torch.float8_e4m3fn, torch.uint8),
        (torch.float8_e5m2, torch.uint8),
    ],
    ids=str,
)
def test_every_value_of_the_small_floats(
    update: Update, dtype: torch.dtype, bits: torch.dtype
) -> None:
    x = torch.arange(2 ** (8 * dtype.itemsize)).to(bits).view(dtype)
    check(accumulate(update, x, None, LOG), x, None, LOG)
    channels = x.view(-1, 256) if x.numel() > 256 else x.view(-1, 16)
    check(accumulate(update, channels, 0, LINEAR, LOG), channels, 0, LINEAR, LOG)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_extreme_integers(update: Update, dtype: torch.dtype) -> None:
    limits = np.iinfo(str(dtype).removeprefix("torch."))
    array = np.array([limits.min, limits.max, 0, 1, limits.max - 1] * 7, dtype=limits.dtype)
    x = torch.from_numpy(array)
    check(accumulate(update, x, None, LOG), x, None, LOG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_extreme_floats(update: Update, dtype: torch.dtype) -> None:
    """The greatest and least magnitudes, alone and mixed; in float64 those that have squares."""
    single = torch.finfo(torch.float32)
    float32 = dtype == torch.float32
    largest, tiny = (single.max, single.smallest_normal) if float32 else (1e150, 1e-150)
    for values in ([largest], [largest, -largest], [tiny, -tiny], [tiny / 4], [largest, tiny, 1.0]):
        x = torch.tensor(values * 11, dtype=dtype)
        check(accumulate(update, x, None, LOG, LINEAR), x, None, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
def test_float64_too_huge_to_square_keeps_its_mean(update: Update) -> None:
    x = torch.tensor([1e300, -1e300, 1e300, 1e300], dtype=torch.float64)
    moments = accumulate(update, x, None).moments[0].tolist()
    assert moments[state.MEAN] == pytest.approx(5e299)
    assert moments[state.M2] == math.inf
    assert moments[state.MIN : state.L1] == [-1e300, 1e300]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nan_and_infinities_are_counted_and_left_out(update: Update, dtype: torch.dtype) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, -math.nan])
    for share in (0.01, 0.5, 1.0):
        values = normal(4, 600).to(dtype)
        generator = torch.Generator().manual_seed(1)
        which = torch.randint(4, values.shape, generator=generator)
        hit = torch.rand(values.shape, generator=generator) < share
        hit[3] = True  # a channel of no finite values
        x = torch.where(hit, special[which].to(dtype), values)
        for shaped, channel_dim in layouts(x):
            got = accumulate(update, shaped, channel_dim, LINEAR, LOG)
            check(got, shaped, channel_dim, LINEAR, LOG)


def views() -> dict[str, Tensor]:
    base = normal(6, 5, 7, 4).float()
    conjugate = torch.complex(base, base + 1).conj()
    flat = normal(700).float()
    return {
        "contiguous": base,
        "sliced": base[1::2, :, 1::3],
        "gap in the channels": base[:, 1:4],
        "gap in the last": base[..., 1:3],
        "transposed": base.transpose(0, 2),
        "permuted": base.permute(3, 1, 0, 2),
        "channels_last": base.to(memory_format=torch.channels_last),
        "channels_last_3d": normal(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
        "expanded": base[:, :1].expand(6, 3, 7, 4),
        "all strides 0": torch.tensor(2.5).expand(3, 4, 5),
        "overlapping": base.reshape(-1).as_strided((8, 9, 3), (2, 3, 1)),
        "negative bit": conjugate.imag,
        "diagonal": base.reshape(30, 28).diagonal(3),
        "selected": base[3, :, 2],
        "unaligned": flat[1:],
        "unaligned rows": flat[3:603].view(3, 200),
        "unaligned columns": flat[1:601].view(200, 3),
        "empty batch": base[:0],
        "empty channels": base[:, :0],
        "empty last": base[..., :0],
        "scalar": torch.tensor(3.0),
        "one element": torch.tensor([[[-1.5]]]),
        "inference": torch.inference_mode()(lambda: normal(3, 4))(),
        "parameter": torch.nn.Parameter(normal(3, 4).float()),
    }


@pytest.mark.parametrize("view", views())
@pytest.mark.parametrize("update", UPDATES)
def test_every_stride_and_dimension(update: Update, view: str) -> None:
    x = views()[view].detach()
    before = x.clone()
    for channel_dim in (None, *range(-x.dim(), x.dim())):
        got = accumulate(update, x, channel_dim, LOG, LINEAR)
        check(got, x, channel_dim, LOG, LINEAR)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("view", ["permuted", "sliced", "expanded", "overlapping", "unaligned"])
def test_strides_of_narrow_dtypes(view: str, dtype: torch.dtype) -> None:
    floats = views()[view]
    whole = floats.as_strided((floats.untyped_storage().nbytes() // 4,), (1,), 0).to(dtype)
    x = whole.as_strided(floats.shape, floats.stride(), floats.storage_offset())
    for channel_dim in (None, *range(x.dim())):
        check(accumulate(ops.update_, x, channel_dim, LINEAR, LOG), x, channel_dim, LINEAR, LOG)


@pytest.mark.parametrize("update", UPDATES)
def test_updates_accumulate(update: Update) -> None:
    """Accumulating pieces into one state is accumulating the whole; empty ones change nothing."""
    x = normal(50, 3)
    got = accumulate(update, x[:20], 1, LOG, LINEAR)
    accumulate(update, x[:0], 1, LOG, LINEAR, into=got)
    accumulate(update, x[20:21], 1, LOG, LINEAR, into=got)
    accumulate(update, x[21:], 1, LOG, LINEAR, into=got)
    check(got, x, 1, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
def test_edges_further_apart_than_float32_can_tell(update: Update) -> None:
    """The distance of a value from the first edge is then infinite in float32."""
    edges = torch.linspace(-3e38, 3e38, 65, dtype=torch.float64).float()
    x = (1e38 * normal(1000)).float()
    counts = torch.zeros(66, dtype=torch.int64)
    update(x, None, state.identity_moments(1), state.identity_tallies(1), counts, edges)
    slots = torch.searchsorted(edges, x, right=True)
    assert torch.equal(counts, torch.bincount(slots, minlength=66))


@pytest.mark.parametrize("update", UPDATES)
def test_the_state_may_be_rows_of_a_larger_one(update: Update) -> None:
    """As in a double buffer: nothing outside the rows given is touched."""
    x = normal(100, 3)
    moments, tallies = state.identity_moments(9), state.identity_tallies(9)
    counts = torch.zeros(9, LOG.slots, dtype=torch.int64)
    rows = slice(4, 7)
    into = State(moments[rows], tallies[rows], None, counts[rows])
    check(accumulate(update, x, 1, None, LOG, into=into), x, 1, None, LOG)
    outside = [0, 1, 2, 3, 7, 8]
    assert torch.equal(moments[outside], state.identity_moments(6))
    assert not tallies[outside].any()
    assert not counts[outside].any()


@pytest.mark.parametrize(
    ("update", "dtype"),
    [
        (ops.update_, torch.float32),
        (ops.update_, torch.bfloat16),
        (reference.update_, torch.float32),
    ],
)
def test_threads_change_no_bit(update: Update, dtype: torch.dtype) -> None:
    values = (normal(6, 50_000) * 3 + 1e3).to(dtype)
    for x, channel_dim in layouts(values):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(accumulate(update, x, channel_dim, LOG, LINEAR))
        check(results[-1], x, channel_dim, LOG, LINEAR)
        assert same_bits(results[0], results[1])
        assert same_bits(results[0], results[2])


@pytest.mark.check
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_instruction_set(capability: str) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if capability == here:
        check_sample(capability)
    elif here in CAPABILITIES[CAPABILITIES.index(capability) :]:
        code = f"from support.values import check_sample; check_sample({capability!r})"
        result = start_python(code, ATEN_CPU_CAPABILITY=capability.lower())
        assert result.returncode == 0, result.stderr
    else:
        pytest.skip(f"this processor has {here}")


@pytest.mark.check
@pytest.mark.parametrize("channels", [None, 64])
def test_more_elements_than_int32_counts(channels: int | None) -> None:
    """Zeros that no page of memory stands for, and a last element that shows it was reached."""
    values = torch.from_numpy(np.zeros(2**31 + 64, np.int8))
    values[-1] = 7
    x, channel_dim = (values, None) if channels is None else (values.view(-1, channels), 1)
    got = accumulate(ops.update_, x, channel_dim)
    assert got.tallies[:, state.COUNT].sum() == values.numel()
    assert got.tallies[:, state.ZERO].sum() == values.numel() - 1
    assert got.moments[-1, state.MAX] == 7
    assert got.moments[-1, state.MEAN] == pytest.approx(7 / (values.numel() / (channels or 1)))


@pytest.mark.parametrize("update", UPDATES)
def test_autograd_sees_nothing(update: Update) -> None:
    """A detached x of a graph, and an x that requires grad: the state joins no graph."""
    leaf = normal(4, 3).requires_grad_()
    x = leaf * 2
    version = x._version
    for given in (x.detach(), x, leaf):
        got = accumulate(update, given, 1, LOG, LINEAR)
        check(got, given, 1, LOG, LINEAR)
        for tensor in got:
            assert tensor is not None
            assert tensor.grad_fn is None
            assert not tensor.requires_grad
    assert x._version == version
    (grad,) = torch.autograd.grad(x.sum(), leaf)
    assert torch.equal(grad, torch.full_like(leaf, 2))


@pytest.mark.parametrize("update", UPDATES)
def test_surroundings_change_nothing(update: Update) -> None:
    """autocast, grad modes, the default dtype and the generator: neither heeded nor touched."""
    x = normal(40, 3).float()
    plain = accumulate(update, x, 1, LOG, LINEAR)
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        assert same_bits(plain, accumulate(update, x, 1, LOG, LINEAR))
    with torch.no_grad():
        assert same_bits(plain, accumulate(update, x, 1, LOG, LINEAR))
    with torch.inference_mode():
        assert same_bits(plain, accumulate(update, x, 1, LOG, LINEAR))
    torch.set_default_dtype(torch.float64)
    try:
        assert same_bits(plain, accumulate(update, x, 1, LOG, LINEAR))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.check
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("bins", [(None, None), (LOG, LINEAR), (LINEAR, LOG)], ids=str)
@pytest.mark.parametrize("channel_dim", [None, 1])
# It copies its inputs, and torch looks at the copies' .grad: it hides the warning, not the error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not:UserWarning")
def test_opcheck(
    channel_dim: int | None, bins: tuple[Bins | None, Bins | None], requires_grad: bool
) -> None:
    """Schema, fake kernel, autograd registration and tracing."""
    x = normal(4, 3, 5).float().requires_grad_(requires_grad)
    arguments: list[Any] = []
    accumulate(lambda *given: arguments.extend(given), x, channel_dim, *bins)
    torch.library.opcheck(ops.update_, tuple(arguments))


def test_compiled_graphs_keep_the_update() -> None:
    got = accumulate(lambda *_: None, normal(4, 3), 1, LOG, LINEAR)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        y = x * 2
        accumulate(ops.update_, y, 1, LOG, LINEAR, into=got)
        return y + 1

    first, second = normal(4, 3, seed=1), normal(4, 3, seed=2)
    assert torch.equal(step(first), first * 2 + 1)
    step(second)
    check(got, torch.cat((first, second)) * 2, 1, LOG, LINEAR)


def test_meta_tensors_pass_through() -> None:
    x = torch.empty(4, 3, device="meta")
    moments, tallies = state.identity_moments(3, "meta"), state.identity_tallies(3, "meta")
    assert ops.update_(x, 1, moments, tallies) is None


def test_the_fallback_warns_once_a_device_type(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "hookstats::update_"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd")
    monkeypatch.setattr(ops, "_warned", set())
    x = normal(10, 3)
    with pytest.warns(RuntimeWarning, match="no kernel for device type 'cpu': the slow PyTorch"):
        check(accumulate(ops._fallback, x, 1, LOG, LINEAR), x, 1, LOG, LINEAR)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(accumulate(ops._fallback, x, 1), x, 1)


def good() -> dict[str, Any]:
    return {
        "x": normal(4, 3),
        "channel_dim": 1,
        "moments": state.identity_moments(3),
        "tallies": state.identity_tallies(3),
        "counts": torch.zeros(LOG.slots, dtype=torch.int64),
        "bins": LOG.descriptor("cpu"),
        "channel_counts": torch.zeros(3, LINEAR.slots, dtype=torch.int64),
        "channel_bins": LINEAR.descriptor("cpu"),
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"channel_dim": 2}, "channel_dim = 2"),
    ({"channel_dim": -3}, "channel_dim = -3"),
    ({"x": torch.zeros(()), "channel_dim": 0}, "channel_dim = 0"),
    ({"x": torch.zeros(4, 3, dtype=torch.complex64)}, "complex64"),
    ({"x": torch.zeros(4, 3, dtype=torch.float8_e4m3fnuz)}, "float8_e4m3fnuz"),
    ({"x": normal(4, 3).to_sparse()}, "sparse"),
    ({"moments": state.identity_moments(2)}, "moments"),
    ({"moments": state.identity_moments(3).float()}, "moments"),
    ({"moments": state.identity_moments(3)[:, :4]}, "moments"),
    ({"tallies": state.identity_tallies(4)}, "tallies"),
    ({"tallies": state.identity_tallies(3).int()}, "tallies"),
    ({"counts": None}, "counts"),
    ({"bins": None}, "bins"),
    ({"channel_counts": None}, "channel_counts"),
    ({"channel_bins": None}, "channel_bins"),
    ({"counts": torch.zeros(LOG.slots)}, "counts"),
    ({"counts": torch.zeros(LOG.slots - 1, dtype=torch.int64)}, "counts"),
    ({"channel_counts": torch.zeros(LINEAR.slots, dtype=torch.int64)}, "channel_counts"),
    ({"channel_counts": torch.zeros(2, LINEAR.slots, dtype=torch.int64)}, "channel_counts"),
    ({"bins": torch.zeros(5, dtype=torch.float64)}, "bins"),
    ({"channel_bins": torch.zeros(1)}, "channel_bins"),
    ({"bins": torch.zeros(4, dtype=torch.int32)}, "bins"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_bad_arguments_are_refused_and_change_nothing(change: dict[str, Any], message: str) -> None:
    arguments = good() | change
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, Tensor)}
    with pytest.raises(ValueError, match=message):
        reference.update_(**arguments)
    with pytest.raises((ValueError, RuntimeError)):  # from C++ a RuntimeError
        ops.update_(**arguments)
    for name, value in before.items():
        assert name == "x" or torch.equal(arguments[name], value)


def start_python(
    code: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that ran `code`, with the package from `cwd` or else this one."""
    paths = python_path(cwd or Path(hookstats.__path__[0]).parent)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.check
@pytest.mark.parametrize("library", [None, b"not a library"])
def test_a_missing_or_stale_library_says_what_to_do(tmp_path: Path, library: bytes | None) -> None:
    copy = tmp_path / "hookstats"
    shutil.copytree(hookstats.__path__[0], copy, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    if library is not None:
        (copy / "_C.abi3.so").write_bytes(library)
    result = start_python("import hookstats.kernels.ops", tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: hookstats: ")
    assert "`pip install .`" in last
    assert ("no operator library" in last) == (library is None)


@pytest.mark.parametrize("zeros", range(4))
@pytest.mark.parametrize("pattern", [*itertools.product((1.9, 2.1), repeat=4)], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_patterns_of_neighbouring_slots(
    update: Update, pattern: tuple[float, ...], zeros: int
) -> None:
    """A slot has four counters side by side, and zeros are left out: what is of one slot, by where
    its counters are, may be of two."""
    bins = LogBins()
    x = torch.tensor(zeros * [0.0] + 1000 * [*pattern])
    check(accumulate(update, x, None, bins), x, None, bins)


@pytest.mark.parametrize("zeros", [0, 1, 15])
@pytest.mark.parametrize("update", UPDATES)
def test_more_of_a_slot_than_16_bits_count(update: Update, zeros: int) -> None:
    """Constant but for some zeros, in rows of one channel or more."""
    bins = LogBins()
    x = torch.ones(300_000)
    x[: 16 * zeros : 16] = 0
    for shape, channel_dim in (((300_000,), None), ((100, 3000), 1), ((4, 3, 25_000), 1)):
        check(
            accumulate(update, x.view(shape), channel_dim, bins), x.view(shape), channel_dim, bins
        )


@pytest.mark.parametrize("bits", range(8))
@pytest.mark.parametrize("update", UPDATES)
def test_values_that_are_not_finite_have_no_slot(update: Update, bits: int) -> None:
    """Infinities and NaN of either sign have neighbours of the last slots as their keys."""
    bins = LogBins(subdivision_bits=bits)
    negative_nan = torch.tensor([-(1 << 22)], dtype=torch.int32).view(torch.float32).item()
    values = [3.4e38, -3.4e38, math.inf, -math.inf, math.nan, negative_nan, 1.0, 0.0]
    x = torch.tensor(4000 * values)
    assert x[5::8].signbit().all()
    check(accumulate(update, x, None, bins), x, None, bins)


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal, with zeros": lambda x: x * (x.abs() > 0.1),
    "of growing size": lambda x: x * torch.logspace(-30, 30, len(x)),
    "of two sizes": lambda x: (
        x * torch.logspace(0, 12, 2).repeat_interleave(99_999).repeat(4)[: len(x)]
    ),
    "some small, some subnormal": lambda x: (
        x * torch.tensor([1.0] * 18 + [1e-9, 1e-41]).repeat(len(x) // 20 + 1)[: len(x)]
    ),
    "mostly of two values": lambda x: torch.where(x > 1.7, x, x.sign()),
    "infinite at first": lambda x: x / (torch.arange(len(x)) >= 5000),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", UPDATES)
def test_two_elements_share_an_increment(update: Update, kind: str, dtype: torch.dtype) -> None:
    """In large tensors, those of a window of slots; the others go alone."""
    bins = LogBins()
    torch.manual_seed(0)
    x = KINDS[kind](torch.randn(700_007)).to(dtype)
    for shape, channel_dim in (((700_007,), None), ((21, 33_333), 0), ((1001, 699), 1)):
        values = x[: math.prod(shape)].view(shape)
        check(accumulate(update, values, channel_dim, bins), values, channel_dim, bins)
