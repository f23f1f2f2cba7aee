"""The occupancy bitmap: no count is lost, whoever wrote it, and it spares the reading."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.expected import assert_stats
from support.forks import in_child
from torch import Tensor, nn
from torch.optim import SGD

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.buffers.graph_states import GraphSite
from hookstats.kernels import native
from hookstats.kernels.ops import update_, update_many_
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.watching.watch import watch

CHANNELS = 3
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(native.hooks is None, reason="only the C++ hooks mark")


class Site:
    """One site of a double buffer, filled by any writer there is."""

    def __init__(self, buffers: DoubleBuffer, name: str) -> None:
        info = SiteInfo(name, "output", CHANNELS, 1, (4, CHANNELS), "float32")
        self.buffers = buffers
        self.accumulator = buffers.accumulator(info, CPU)
        half = buffers.native_site(self)
        assert half is not None
        self.native = half
        self.graph_site = GraphSite()

    def accumulate(self, x: Tensor, writer: str) -> None:
        """Accumulate `x` into the open step as `writer` does."""
        buffers, accumulator = self.buffers, self.accumulator
        if writer == "c++":
            accumulator.set_plan(self.native, x, 1)
            awaits = torch.empty_like(x).requires_grad_() * 1
            assert native.hooks is not None
            native.hooks.await_gradient(self.native, awaits)
            awaits.backward(x)
        elif writer == "python":
            with buffers.lock, buffers.guard:
                accumulator.accumulate(x, 1)
        elif writer == "many":  # as the parameters' hooks in Python do
            moments, tallies, counts, bins, *_ = accumulator.states[buffers.front]
            update_many_([x], 1, [moments], [tallies], [counts], bins, [], None)
            accumulator.count()
        else:
            state = accumulator.graph_state(self.graph_site)
            update_(x, 1, *state.state)
            state.accumulated += 1

    def receive(self, gradient: Tensor, first: bool) -> None:
        raise AssertionError("the C++ half took it")

    def disable(self, error: BaseException) -> None:
        raise error


def close(buffers: DoubleBuffer) -> StepRecord:
    closed = buffers.close()
    assert closed is not None
    return closed.to_record(0, 0)


def data(kind: str) -> Tensor:
    x = torch.randn(70_000 if kind == "large" else 40, CHANNELS)
    if kind == "non-finite":
        x[::3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    if kind == "extreme":  # in slots that are nobody's neighbours
        x[:, 0], x[:, 1], x[:, 2] = 3e38, -3e38, 1e-45
    return x[:0] if kind == "empty" else x


WRITERS = ["c++", "python", "many", "graph"]
ACCUMULATED = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["c++", *WRITERS]),
    st.sampled_from(["normal", "normal", "non-finite", "extreme", "empty", "large"]),
)


@pytest.mark.check
@pytest.mark.parametrize("bins", [LogBins(), LogBins(0, -3, 3), LinearBins(5, -1.0, 1.0)])
@given(st.lists(st.lists(ACCUMULATED, max_size=5), min_size=1, max_size=5))
def test_no_count_is_lost_whoever_wrote_it(
    bins: Bins, steps: list[list[tuple[int, str, str]]]
) -> None:
    buffers = DoubleBuffer(bins, None)
    buffers.record(True)
    sites = [Site(buffers, str(i)) for i in range(3)]
    for drawn in steps:
        seen: dict[int, list[Tensor]] = {}
        for i, writer, kind in drawn:
            x = data(kind)
            sites[i].accumulate(x, writer)
            seen.setdefault(i, []).append(x)
        record = close(buffers)
        assert set(record) == {(str(i), "output") for i in seen}
        for i, tensors in seen.items():
            assert_stats(record[str(i), "output"], tensors, 1)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_step_that_is_not_read_leaves_nothing(writer: str) -> None:
    buffers = DoubleBuffer(LogBins(), None)
    buffers.record(True)
    site = Site(buffers, "a")
    for _ in range(2):
        site.accumulate(data("extreme"), writer)
        buffers.close()
    for _ in range(2):
        x = data("normal")
        site.accumulate(x, "c++")
        assert_stats(close(buffers)["a", "output"], [x], 1)


@contextmanager
def interrupt_after(monkeypatch: pytest.MonkeyPatch, operator: str) -> Iterator[None]:
    """Ctrl-C during a call of `operator`: Python learns of it when the call returns."""
    module, name = operator.rsplit(".", 1)
    call = getattr(sys.modules[module], name)

    def interrupted(*arguments: object) -> None:
        call(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(operator, interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


def assert_counts_add_up(record: StepRecord) -> None:
    assert record.hist.counts.sum() == record.tallies[:, 0].sum() > 0


def test_an_interrupted_accumulation_breaks_its_step_and_leaves_nothing_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffers = DoubleBuffer(LogBins(), None)
    buffers.record(True)
    site = Site(buffers, "a")
    with interrupt_after(monkeypatch, "hookstats.buffers.double_buffer.update_"):
        site.accumulate(torch.full((4, CHANNELS), 1e10), "python")
    site.accumulate(torch.ones(4, CHANNELS), "c++")
    assert buffers.close() is None
    for writers in (["c++"], ["c++"], ["c++"], ["c++", "python"], ["c++", "python"]):
        for writer in writers:
            x = torch.ones(4, CHANNELS)
            site.accumulate(x, writer)
        record = close(buffers)
        assert_counts_add_up(record)
        assert_stats(record["a", "output"], [x] * len(writers), 1)


def test_an_accumulation_that_fails_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = DoubleBuffer(LogBins(), None)
    buffers.record(True)
    site = Site(buffers, "a")
    with pytest.raises(RuntimeError, match="dtype"):
        site.accumulate(torch.ones(4, CHANNELS, dtype=torch.complex64), "python")
    assert buffers.pending() == 0


def test_a_child_has_the_counts_of_its_own() -> None:
    """Forked with a step half filled."""
    buffers = DoubleBuffer(LogBins(), None)
    buffers.record(True)
    site = Site(buffers, "a")
    before, after = data("normal"), data("extreme")
    site.accumulate(before, "c++")

    def accumulate() -> None:
        # Not "c++": where a test before had autograd make threads, forks run no backward.
        site.accumulate(after, "python")
        assert_stats(close(buffers)["a", "output"], [before, after], 1)

    in_child(accumulate)
    assert_stats(close(buffers)["a", "output"], [before], 1)


def trained(change: Callable[[nn.Module, int], None]) -> list[StepRecord]:
    """The records of a training run that `change` disturbs before each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = SGD(model.parameters(), lr=0.1)
    records: list[StepRecord] = []
    kinds = ("input", "output", "grad_input", "grad_output", "param", "param_grad")
    with watch(model, optimizer, kinds=kinds, sinks=[records.append]) as w:
        for step in range(8):
            change(model, step)
            optimizer.zero_grad()
            x = torch.randn(5 if step % 4 == 3 else 3, 8)
            if step == 5:
                w.pause()
            for _ in range(1 + step % 2):  # gradients add up
                model(x).square().mean().backward()
            if step == 5:
                w.resume()
            optimizer.step()
    return records


def nothing(model: nn.Module, step: int) -> None:
    pass


def spoil(model: nn.Module, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            model[0].weight[0, 0] = torch.nan  # type: ignore[index]


def freeze(model: nn.Module, step: int) -> None:
    model[0].weight.requires_grad_(step % 3 != 1)  # type: ignore[index]
    model[0].weight.grad = None  # type: ignore[index]


@pytest.mark.parametrize("change", [nothing, spoil, freeze])
def test_a_training_is_counted_as_it_is_without_occupancy(
    change: Callable[[nn.Module, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = trained(change)
    monkeypatch.setattr(native, "hooks", None)
    plain = trained(change)
    assert len(marked) == len(plain) == 8
    for mine, other in zip(marked, plain, strict=True):
        assert list(mine) == list(other)
        assert mine.observed.tolist() == other.observed.tolist()
        for name in ("offsets", "slots", "counts"):
            assert (getattr(mine.hist, name) == getattr(other.hist, name)).all(), name
