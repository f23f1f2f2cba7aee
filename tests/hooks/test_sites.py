"""Sites: what they accumulate, what they skip and why, and that their counts add up."""

from __future__ import annotations

import pytest
import torch
from support.expected import assert_stats
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hookstats.buffers import double_buffer as accumulators
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.readable import unreadable
from hookstats.hooks.sites import Site
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import LogBins

pytestmark = pytest.mark.usefixtures("hooks_in")


@pytest.fixture
def buffers() -> DoubleBuffer:
    return DoubleBuffer(LogBins(), None)


def last(ndim: int) -> int | None:
    return ndim - 1 if ndim else None


def close(buffers: DoubleBuffer) -> StepRecord:
    closed = buffers.close()
    assert closed is not None
    return closed.to_record(0, 0)


def by_operator(site: Site) -> Site:
    """The site without its C++ half, which would accumulate tensors itself."""
    site.native = None
    return site


def test_observe(buffers: DoubleBuffer) -> None:
    site = Site(buffers, "fc", "output", last)
    x, y = torch.randn(4, 3), torch.randn(2, 5, 3, dtype=torch.float64)
    site.observe(x)
    site.observe(y)
    record = close(buffers)
    assert record.sites == (SiteInfo("fc", "output", 3, 2, (2, 5, 3), "float64"),)
    assert_stats(record["fc", "output"], [x.double(), y], -1)
    assert (site.counts.forwards, site.counts.observed, site.counts.skipped) == (2, 2, {})


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(3.0),
        torch.randn(4, 3).t(),
        torch.randn(3).expand(5, 3),
        torch.empty(0, 3),
        torch.randn(2, 3).bfloat16(),
        torch.randn(2, 3).to(torch.float8_e5m2),
        torch.view_as_complex(torch.randn(2, 3, 2)).conj().imag,
        torch.randn(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.randn(2, 3)),
        torch.full((2, 3), torch.nan),
    ],
)
def test_odd_tensors_are_observed(buffers: DoubleBuffer, x: Tensor) -> None:
    site = Site(buffers, "", "output", last)
    version = x._version
    site.observe(x)
    assert site.counts.observed == 1
    assert_stats(close(buffers)["", "output"], [x], last(x.dim()))
    assert x._version == version


def test_the_operator_gets_detached_tensors(
    buffers: DoubleBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Tensor] = []
    monkeypatch.setattr(accumulators, "update_", lambda x, *others: given.append(x))
    x = torch.randn(2, 3, requires_grad=True) * 2
    by_operator(Site(buffers, "", "output", last)).observe(x)
    assert not given[0].requires_grad
    assert given[0].data_ptr() == x.data_ptr()


class Dispatching(Tensor):
    """A tensor without memory of its own, as DTensor is."""

    @classmethod
    def __torch_dispatch__(cls, *args: object, **kwargs: object) -> object:
        raise AssertionError("nothing is to be done with it")


def dispatching() -> Tensor:
    return Tensor._make_wrapper_subclass(Dispatching, (2, 3))


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.randn(2, 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.arange(3), "dtype int64"),
        (lambda: torch.ones(3).bool(), "dtype bool"),
        (lambda: torch.ones(2, 3).to(torch.float8_e4m3fnuz), "dtype float8_e4m3fnuz"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "dtype quint8"),
        (lambda: torch.empty(2, 3, device="meta"), "meta tensor"),
        (lambda: torch.eye(3).to_sparse(), "layout sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout sparse_csr"),
        (lambda: torch.eye(3).to_mkldnn(), "layout _mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor"),
        (
            lambda: torch.nested.nested_tensor(
                [torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged
            ),
            "NestedTensor",
        ),
        (fake, "FakeTensor"),
        (dispatching, "Dispatching"),
        (lambda: torch.empty(5, 0), "no channels"),
    ],
)
def test_what_cannot_be_read_is_skipped_and_counted(
    buffers: DoubleBuffer, make: object, reason: str
) -> None:
    assert callable(make)
    site = Site(buffers, "fc", "output", last)
    site.observe(make())
    site.observe(torch.ones(2, 3))
    assert (site.counts.forwards, site.counts.observed, site.counts.skipped) == (2, 1, {reason: 1})
    assert site.error is None
    assert len(close(buffers)) == 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_complex_numbers_are_pairs_of_reals(
    buffers: DoubleBuffer, dtype: torch.dtype, dim: int | None
) -> None:
    site = Site(buffers, "fc", "output", lambda ndim: dim)
    x = torch.randn(4, 3, dtype=dtype)
    given = [x, x.conj(), x.t().contiguous().t()]
    for one in given:
        site.observe(one)
    assert (site.counts.observed, site.counts.skipped) == (3, {})
    record = close(buffers)
    pairs = [torch.view_as_real(one.resolve_conj()) for one in given]
    assert_stats(record["fc", "output"], pairs, None if dim is None else dim % 2)
    (info,) = record.sites
    assert (info.shape, info.dtype) == ((4, 3), str(dtype).removeprefix("torch."))


def test_complex_and_real_tensors_of_one_site(buffers: DoubleBuffer) -> None:
    """The pairs have the shape of the real tensor, whose channels lie elsewhere."""
    site = Site(buffers, "fc", "output", lambda ndim: 0)
    pairs, real = torch.randn(2, 5, dtype=torch.complex64), torch.randn(2, 5, 2)
    for given in (real, pairs, real):
        site.observe(given)
    expected = [real, torch.view_as_real(pairs), real]
    assert_stats(close(buffers)["fc", "output"], expected, 0)


def test_tensors_of_functorch_are_unreadable() -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(unreadable(x))
        return x.sum()

    torch.func.vmap(f)(torch.ones(2, 3))
    torch.func.grad(f)(torch.ones(3))
    assert seen == ["torch.func transform"] * 2
    assert unreadable(torch.ones(3)) is None


def test_a_dimension_that_is_not_there_is_skipped(buffers: DoubleBuffer) -> None:
    site = Site(buffers, "fc", "output", lambda ndim: 2)
    site.observe(torch.randn(4, 3))
    site.observe(torch.randn(4, 3, 2))
    assert (site.counts.observed, site.counts.skipped) == (1, {"no dimension 2": 1})


def test_a_site_that_fails_is_disabled_and_warned_of_once(
    buffers: DoubleBuffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("out of order")

    site = by_operator(Site(buffers, "fc", "output[1]", last))
    site.observe(torch.ones(2, 3))
    monkeypatch.setattr(accumulators, "update_", broken)
    message = r"output\[1\] of 'fc'.*RuntimeError: out of order"
    with pytest.warns(RuntimeWarning, match=message):
        site.observe(torch.ones(2, 3))
    site.observe(torch.ones(2, 3))
    assert caplog.messages == []  # where a second warning, an error here, would be
    monkeypatch.undo()
    site.observe(torch.ones(2, 3))
    assert (site.counts.forwards, site.counts.observed, site.counts.skipped) == (
        4,
        1,
        {"disabled": 3},
    )
    assert site.row().error == "RuntimeError: out of order"


def test_a_lost_device_is_not_hushed_up(
    buffers: DoubleBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    site = by_operator(Site(buffers, "fc", "output", last))
    monkeypatch.setattr(accumulators, "update_", broken)
    with pytest.raises(torch.AcceleratorError):
        site.observe(torch.ones(2, 3))


def test_a_tensor_with_torch_function_is_read_without_calling_it(buffers: DoubleBuffer) -> None:
    class Talking(Tensor):
        @classmethod
        def __torch_function__(cls, *args: object, **kwargs: object) -> object:
            raise AssertionError("called")

    site = Site(buffers, "fc", "output", last)
    x = torch.randn(2, 3)
    with torch._C.DisableTorchFunction():  # as hooks do
        site.observe(x.as_subclass(Talking))
    assert_stats(close(buffers)["fc", "output"], [x], -1)
