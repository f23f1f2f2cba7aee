"""watch() on GPUs while a CUDA graph is captured: skipped, counted, and never in its way."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from support.devices import needs_kernel, network_on, on_gpu
from support.expected import assert_stats
from torch.optim import SGD

import hookstats as hs
from hookstats.buffers.staging import Staging
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.watching.settings import KINDS

pytestmark = on_gpu


@pytest.fixture
def side_stream() -> Iterator[torch.cuda.Stream]:
    """A stream to warm up on, as a capture wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    yield stream
    torch.cuda.current_stream().wait_stream(stream)


def test_a_captured_forward_is_skipped_and_counted(side_stream: torch.cuda.Stream) -> None:
    """Hooks run while a graph is captured, and not when it is replayed."""
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        with torch.cuda.stream(side_stream):
            for _ in range(3):
                model(x).sum().backward()
        torch.cuda.current_stream().wait_stream(side_stream)
        w.step()
        assert w.latest.step == 0
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
        w.step()
        assert len(w.latest) == 0
        row = w.coverage()["2", "output"]
        assert (row.forwards, row.observed) == (4, 3)
        assert row.skipped == {"CUDA graph capture": 1}
        again = model(x)
        w.step()
        assert torch.equal(y, again)
        assert_stats(w.latest["2", "output"], [again.cpu()], -1)


def test_a_captured_step_closes_none(side_stream: torch.cuda.Stream) -> None:
    """Not even where its optimizer is captured, too."""
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with hs.watch(model, optimizer, kinds=KINDS) as w:
        with torch.cuda.stream(side_stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side_stream)
        assert w.latest.step == 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(3):
            graph.replay()
        assert w.latest.step == 2
        step()
        assert w.latest.step == 3
        row = w.coverage()["2.weight", "param_grad"]
        assert (row.observed, row.skipped) == (4, {"CUDA graph capture": 1})


@needs_kernel
def test_a_capture_goes_on_while_a_step_is_read_out() -> None:
    """The recorder asks the device whether it is done, which a capture forbids by default."""
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    captured = torch.zeros(1000, device="cuda")
    stop = threading.Event()
    staging = Staging(x.device)
    failures: list[BaseException] = []

    def read_out() -> None:
        try:
            while not stop.is_set():
                with staging.work():
                    staging.copy(x)
        except BaseException as error:
            failures.append(error)

    with hs.watch(model, kinds=("output",)) as w:
        model(x)
        w.step()
        assert w.latest.step == 0
        thread = threading.Thread(target=read_out)
        thread.start()
        try:
            for _ in range(10):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(200):
                        captured.add_(1)
                graph.replay()
        finally:
            stop.set()
            thread.join()
    assert failures == []
    assert captured.tolist() == [2000.0] * 1000


@needs_kernel
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_graphs_are_replayed_as_cuda_graphs() -> None:
    """Their states stay where they are, so that inductor neither copies them nor gives up, and of
    its memory nothing is kept: so many rows are cut into pieces, which need a workspace."""
    from torch._dynamo.utils import counters

    model = network_on()
    counters.clear()
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            model.zero_grad()  # gradients are outputs of the graph that runs again now
            x = torch.randn(8192, 64, device="cuda")
            y = compiled(x)
            expected = y.detach().clone()
            y.square().sum().backward()
            w.step()
            assert_stats(w.latest["2", "output"], [expected.cpu()], -1)
            assert_stats(w.latest["2", "grad_output"], [2 * expected.cpu()], -1)
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # torch 2.11's own
def test_a_watched_module_cannot_become_a_graphed_callable() -> None:
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with (
        hs.watch(model, kinds=("output",), include=""),
        pytest.raises((RuntimeError, AssertionError), match="hooks"),  # 2.11: the latter
    ):
        torch.cuda.make_graphed_callables(model, (x,))
    torch.cuda.make_graphed_callables(model, (x,))
