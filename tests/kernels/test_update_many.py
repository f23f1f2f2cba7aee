"""hookstats::update_many_ and its reference: the bits of one by one, scales, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from support.devices import on_cuda, on_gpu
from support.oracle import DTYPES, State, accumulate, check
from torch import Tensor

from hookstats.kernels import ops
from hookstats.stats import reference, state
from hookstats.stats.bins import Bins, LinearBins, LogBins

UPDATES = [
    pytest.param(ops.update_many_, id="op"),
    pytest.param(on_cuda(ops.update_many_), id="cuda", marks=on_gpu),
    pytest.param(reference.update_many_, id="reference"),
]
LINEAR = LinearBins(16, -3.0, 3.0)
LOG = LogBins(2)
BINS = [(None, None), (LOG, LINEAR), (LINEAR, None), (None, LOG)]
WIDE = (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)

Update = Callable[..., None]


pytestmark = pytest.mark.usefixtures("one_thread")


def tensors() -> list[Tensor]:
    """Of many sizes, layouts and dtypes, and odd ones."""
    base = torch.randn(6, 5, 7, 4)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]).repeat(50).view(3, 100)
    return [
        torch.randn(64, 64),
        torch.randn(1),
        odd,
        base.to(memory_format=torch.channels_last),
        base.permute(3, 1, 0, 2)[1:, ::2],
        base[:, :1].expand(6, 3, 7, 4),
        torch.randn(100, 70).bfloat16(),
        torch.randn(40, 30).half(),
        torch.randn(5, 9, dtype=torch.float64),
        torch.randn(8, 16).to(torch.float8_e5m2),
        torch.randint(-9, 9, (4, 5)),
        torch.empty(3, 0),
        torch.empty(0, 3),
        torch.randn(4, 3, requires_grad=True),
        torch.view_as_complex(torch.randn(4, 3, 2)).conj().imag,
        *torch.randn(40, 20, 30),
    ]


def empty_states(
    xs: list[Tensor], dim: int | None, bins: Bins | None, channel_bins: Bins | None
) -> list[State]:
    return [accumulate(lambda *_: None, x, dim, bins, channel_bins) for x in xs]


def arguments(
    xs: list[Tensor],
    dim: int | None,
    states: list[State],
    bins: Bins | None = None,
    channel_bins: Bins | None = None,
    scale: Tensor | None = None,
) -> tuple[Any, ...]:
    """What update_many_ takes to accumulate `xs` into `states`."""
    return (
        xs,
        dim,
        [s.moments for s in states],
        [s.tallies for s in states],
        [s.counts for s in states] if bins else [],
        None if bins is None else bins.descriptor("cpu"),
        [s.channel_counts for s in states] if channel_bins else [],
        None if channel_bins is None else channel_bins.descriptor("cpu"),
        scale,
    )


def accumulate_many(
    update: Update,
    xs: list[Tensor],
    dim: int | None,
    bins: Bins | None = None,
    channel_bins: Bins | None = None,
    scale: float | None = None,
) -> list[State]:
    states = empty_states(xs, dim, bins, channel_bins)
    divisor = None if scale is None else torch.tensor(scale)
    update(*arguments(xs, dim, states, bins, channel_bins, divisor))
    return states


def assert_same_bits(one: list[State], two: list[State]) -> None:
    for i, (a, b) in enumerate(zip(chain(*one), chain(*two), strict=True)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert torch.equal(a.view(torch.int64), b.view(torch.int64)), i


@pytest.mark.parametrize(("bins", "channel_bins"), BINS, ids=str)
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize(
    ("many", "one"),
    [
        pytest.param(ops.update_many_, ops.update_, id="op"),
        pytest.param(
            reference.update_many_, reference.update_, id="reference", marks=pytest.mark.check
        ),
    ],
)
def test_the_bits_are_those_of_one_by_one(
    many: Update, one: Update, dim: int | None, bins: Bins | None, channel_bins: Bins | None
) -> None:
    xs = tensors()
    if many is ops.update_many_:  # enough elements to be shared by threads
        xs[2:2] = [torch.randn(3, 500, 400)]
    expected = [accumulate(one, x, dim, bins, channel_bins) for x in xs]
    versions = [x._version for x in xs]
    for threads in (1, 2, 3) if many is ops.update_many_ else (1,):
        torch.set_num_threads(threads)
        assert_same_bits(accumulate_many(many, xs, dim, bins, channel_bins), expected)
    assert [x._version for x in xs] == versions


@pytest.mark.parametrize("update", UPDATES)
def test_every_tensor_is_held_to_the_oracle(update: Update) -> None:
    xs = tensors()
    for got, x in zip(accumulate_many(update, xs, 0, LOG, LINEAR), xs, strict=True):
        check(got, x, 0, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
def test_no_tensors_are_nothing_to_do(update: Update) -> None:
    for bins, channel_bins in BINS:
        update(*arguments([], 0, [], bins, channel_bins))


def quotients(x: Tensor, scale: float) -> Tensor:
    """`x` / `scale`, as wide as the kernels widen it, with the strides of `x`."""
    x = x.resolve_neg()
    elements = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((elements,), (1,), 0)
    memory = memory.to(torch.float64 if x.dtype in WIDE else torch.float32) / torch.tensor(scale)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize(
    ("many", "one", "scale"),
    [
        *((ops.update_many_, ops.update_, s) for s in (3.0, 0.0)),
        *(
            pytest.param(*each, marks=pytest.mark.check)
            for each in (
                *((ops.update_many_, ops.update_, s) for s in (1.0, 2.0**16, math.inf)),
                *((reference.update_many_, reference.update_, s) for s in (3.0, 0.0)),
            )
        ),
    ],
)
@pytest.mark.parametrize("dim", [None, 0, pytest.param(-1, marks=pytest.mark.check)])
def test_a_scale_divides_the_values(
    many: Update, one: Update, dim: int | None, scale: float
) -> None:
    """The bits are those of the quotients, laid out as the tensors are."""
    xs = tensors()
    divided = [quotients(x.detach(), scale) for x in xs]
    expected = [accumulate(one, x, dim, LOG, LINEAR) for x in divided]
    for got, x in zip(expected, divided, strict=True):
        check(got, x, dim, LOG, LINEAR)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert_same_bits(accumulate_many(many, xs, dim, LOG, LINEAR, scale), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scale_divides_every_dtype(dtype: torch.dtype) -> None:
    x = (torch.randn(7, 100).abs() * 20).to(dtype)
    for update in (ops.update_many_, reference.update_many_):
        (got,) = accumulate_many(update, [x], 0, LOG, LINEAR, 3.0)
        check(got, quotients(x, 3.0), 0, LOG, LINEAR)


@pytest.mark.parametrize("update", UPDATES)
def test_a_power_of_two_scales_back_to_the_same_bits(update: Update) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        xs = [torch.randn(64, 33).to(dtype), torch.randn(5, 3, 7).to(dtype)]
        scaled = [x * 2.0**16 for x in xs]
        for dim in (None, 0, -1):
            plain = accumulate_many(update, xs, dim, LOG, LINEAR)
            assert_same_bits(accumulate_many(update, scaled, dim, LOG, LINEAR, 2.0**16), plain)


@pytest.mark.parametrize("update", UPDATES)
def test_autograd_sees_nothing(update: Update) -> None:
    leaf = torch.randn(4, 3, requires_grad=True)
    states = accumulate_many(update, [leaf, leaf * 2], 0, LOG, LINEAR, 2.0)
    for tensor in chain(*states):
        assert tensor is not None
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


@pytest.mark.check
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("bins", "channel_bins", "scale"),
    [(None, None, None), (LOG, LINEAR, 2.0), (LINEAR, None, None), (None, LOG, 2.0)],
    ids=str,
)
# It copies its inputs, and torch looks at the copies' .grad: it hides the warning, not the error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not:UserWarning")
def test_opcheck(
    bins: Bins | None, channel_bins: Bins | None, requires_grad: bool, scale: float | None
) -> None:
    xs = [torch.randn(4, 3, requires_grad=requires_grad), torch.randn(2)]
    states = empty_states(xs, 0, bins, channel_bins)
    divisor = None if scale is None else torch.tensor(scale)
    given = arguments(xs, 0, states, bins, channel_bins, divisor)
    torch.library.opcheck(ops.update_many_, given)


def test_compiled_graphs_keep_the_update() -> None:
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    states = empty_states([first, first], 1, LOG, LINEAR)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        y = x * 2
        ops.update_many_(*arguments([x, y], 1, states, LOG, LINEAR))
        return y + 1

    assert torch.equal(step(first), first * 2 + 1)
    step(second)
    check(states[0], torch.cat((first, second)), 1, LOG, LINEAR)
    check(states[1], torch.cat((first, second)) * 2, 1, LOG, LINEAR)


def good() -> dict[str, Any]:
    xs = [torch.randn(3, 4), torch.randn(5), torch.randn(2, 2)]
    states = empty_states(xs, 0, LOG, LINEAR)
    names = ("xs", "channel_dim", "moments", "tallies", "counts", "bins", "channel_counts")
    given = arguments(xs, 0, states, LOG, LINEAR, torch.tensor(2.0))
    return dict(zip((*names, "channel_bins", "scale"), given, strict=True))


def _set(name: str, i: int, value: Tensor) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        given[name][i] = value

    return change


def _put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update({name: value})


def _pop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda given: given[name].pop()


def _share(name: str, i: int, j: int) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        rows = torch.zeros(9, given[name][i].shape[-1], dtype=given[name][i].dtype)
        given[name][i], given[name][j] = (
            rows[: len(given[name][i])],
            rows[1 : 1 + len(given[name][j])],
        )

    return change


# What is changed, and what the operator's message names.
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "dimension": (_put("channel_dim", -2), r"channel_dim is -2.*xs\[1\]"),
    "dtype": (_set("xs", 2, torch.zeros(2, 2, dtype=torch.complex64)), r"xs\[2\]"),
    "sparse": (_set("xs", 1, torch.zeros(5).to_sparse()), "x has layout"),
    "moments": (_set("moments", 1, state.identity_moments(2)), r"moments\[1\]"),
    "tallies": (_set("tallies", 0, torch.zeros(3, 5)), r"tallies\[0\]"),
    "counts": (_set("counts", 2, torch.zeros(3).long()), r"counts\[2\]"),
    "channel_counts": (
        _set("channel_counts", 1, torch.zeros(2, 2).long()),
        r"channel_counts\[1\]",
    ),
    "few moments": (_pop("moments"), "moments has 2.*expected 3"),
    "few tallies": (_pop("tallies"), "tallies has 2"),
    "few counts": (_pop("counts"), "counts has 2"),
    "few channel_counts": (_pop("channel_counts"), "channel_counts has 2"),
    "no bins": (_put("bins", None), "counts has 3"),
    "no channel_bins": (_put("channel_bins", None), "channel_counts has 3"),
    "bins": (_put("bins", torch.zeros(5, dtype=torch.float64)), "bins"),
    "scale's dtype": (_put("scale", torch.tensor(2)), "scale"),
    "scale's shape": (_put("scale", torch.ones(1)), "scale"),
    "shared moments": (_share("moments", 0, 2), r"moments\[0\] and moments\[2\] share"),
    "shared tallies": (_share("tallies", 2, 0), r"tallies\[0\] and"),
    "shared channel_counts": (_share("channel_counts", 0, 2), r"channel_counts\[0\] and"),
    "shared counts": (
        lambda given: _set("counts", 2, given["counts"][1])(given),
        r"counts\[1\] and counts\[2\]",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_bad_arguments_are_refused_by_name_and_change_nothing(why: str) -> None:
    change, message = REFUSED[why]
    given = good()
    change(given)
    lists = ("moments", "tallies", "counts", "channel_counts")
    before = [t.clone() for name in lists for t in given[name]]
    with pytest.raises((ValueError, RuntimeError), match=message):  # from C++ a RuntimeError
        ops.update_many_(**given)
    for tensor, was in zip((t for name in lists for t in given[name]), before, strict=True):
        assert torch.equal(tensor, was)
