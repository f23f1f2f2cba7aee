"""watch() on GPUs: streams and devices; no synchronisation and no allocation in a hook."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from support.devices import (
    LATE,
    needs_kernel,
    needs_two,
    network_on,
    no_synchronisation,
    on_gpu,
)
from support.expected import assert_stats
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import hookstats as hs
from hookstats.buffers.staging import Staging, event
from hookstats.hooks.attach import MODULE_KINDS
from hookstats.hooks.sites import Site
from hookstats.hooks.step_sample import StepSample
from hookstats.kernels import native
from hookstats.watching.settings import KINDS

pytestmark = on_gpu


def train(*, watched: bool, steps: int = 5) -> list[Tensor]:
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    w = hs.watch(model, optimizer, kinds=KINDS) if watched else None
    for step in range(steps):
        optimizer.zero_grad()
        generator = torch.Generator("cuda").manual_seed(step)
        x = torch.randn(256, 64, device="cuda", generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
    if w is not None:
        assert w.latest.step == steps - 1
        assert all(row.error is None for row in w.coverage())
        w.close()
    return [p.detach().cpu() for p in model.parameters()]


def test_a_watched_training_is_bitwise_the_same() -> None:
    for mine, other in zip(train(watched=True), train(watched=False), strict=True):
        assert torch.equal(mine, other)


def test_counts_are_those_of_the_cpu() -> None:
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    x[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    with hs.watch(model, kinds=("input", "output", "grad_output")) as w:
        y = model(x)
        y.nan_to_num().square().sum().backward()
        w.step()
        assert_stats(w.latest["0", "input"], [x.cpu()], -1)
        assert_stats(w.latest["2", "output"], [y.cpu()], -1)


def test_tensors_are_read_on_the_stream_that_makes_them() -> None:
    model = network_on()
    stream = torch.cuda.Stream()
    with hs.watch(model, kinds=("output",)) as w:
        for _ in range(10):
            x = torch.randn(4096, 64, device="cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LATE)
                y = model(x)
                expected = y.clone()
                del y
                torch.full((4096, 8), torch.nan, device="cuda")  # takes the memory of y
            x.record_stream(stream)
            torch.cuda.current_stream().wait_stream(stream)
            w.step()
            assert_stats(w.latest["2", "output"], [expected.cpu()], -1)


def test_gradients_are_read_where_the_backward_makes_them() -> None:
    """The engine runs a backward on a thread and on the streams of the forward."""
    model = network_on()
    stream = torch.cuda.Stream()
    with hs.watch(model, kinds=("grad_output",)) as w:
        for _ in range(5):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = model(torch.randn(4096, 64, device="cuda"))
                torch.cuda._sleep(LATE)
                loss = y.square().sum()
            loss.backward()
            torch.cuda.current_stream().wait_stream(stream)
            w.step()
            assert_stats(w.latest["2", "grad_output"], [2 * y.detach().cpu()], -1)


def test_a_step_closes_behind_the_work_that_was_asked_for() -> None:
    model = network_on()
    with hs.watch(model, kinds=("output",)) as w:
        outputs = []
        for _ in range(6):
            torch.cuda._sleep(LATE)
            outputs.append(model(torch.randn(4096, 64, device="cuda")))
            w.step()  # both buffers are under way by the third
        assert_stats(w.latest["2", "output"], [outputs[-1].cpu()], -1)


@needs_kernel
def test_a_step_waits_for_streams_that_nobody_joined() -> None:
    model = network_on()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    x = torch.randn(4096, 64, device="cuda")
    torch.cuda.synchronize()
    with hs.watch(model, kinds=("output",)) as w:
        for step in range(6):
            with torch.cuda.stream(streams[step % 2]):
                torch.cuda._sleep(LATE)
                y = model(x)
            w.step()  # on another stream, which does not wait
            assert_stats(w.latest["2", "output"], [y.cpu()], -1)


@needs_kernel
def test_hooks_do_not_synchronise() -> None:
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with hs.watch(model, kinds=KINDS) as w:
        model(x).sum().backward()
        w.step()
        assert w.latest.step == 0  # the recorder, which does wait, has nothing to do
        with no_synchronisation():
            for _ in range(100):
                model(x).sum().backward()
        w.step()
        assert all(row.error is None for row in w.coverage())


@needs_kernel
def test_masks_do_not_synchronise() -> None:
    model = network_on()
    x = torch.randn(4, 16, 64, device="cuda")
    mask = torch.arange(16, device="cuda") < torch.tensor([[16], [3], [9], [0]], device="cuda")
    with hs.watch(model, kinds=("output", "grad_output")) as w:
        model(x).sum().backward()
        w.step()
        assert w.latest.step == 0
        with no_synchronisation():
            with w.mask(mask):
                y = model(x)
            y.square().sum().backward()
        w.step()
        kept = y.detach()[mask]
        assert_stats(w.latest["2", "output"], [kept.cpu()], -1)
        assert_stats(w.latest["2", "grad_output"], [2 * kept.cpu()], -1)
        assert w.coverage()["2", "output"].unmasked == {}


@needs_kernel
def test_steps_close_without_synchronising() -> None:
    """Nor does the recorder, for which the mode holds as well."""
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(256, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    with hs.watch(model, optimizer, kinds=KINDS) as w:
        step()
        assert w.latest.step == 0
        with no_synchronisation():
            for _ in range(20):
                step()
            assert w.latest.step == 20
        assert all(row.error is None for row in w.coverage())
        assert w.coverage()["2.weight", "param_grad"].observed == 21


@needs_kernel
def test_the_host_does_not_wait_for_a_busy_device() -> None:
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with hs.watch(model, kinds=("output",)) as w:
        model(x)
        w.step()
        assert w.latest.step == 0
        torch.cuda._sleep(100 * LATE)
        behind = event(x.device)
        for _ in range(3):
            model(x)
        w.step()
        assert not behind.query()
        assert w.latest.step == 1


def test_what_is_staged_is_copied_behind_its_event() -> None:
    x = torch.zeros(1000, device="cuda")
    staging = Staging(x.device)
    torch.cuda._sleep(LATE)
    x.fill_(1.0)
    with staging.work(event(x.device)):
        copy = staging.copy(x)
    assert copy.is_pinned()
    assert copy.tolist() == [1.0] * 1000


@needs_kernel
@pytest.mark.skipif(native.hooks is None, reason=f"no C++ hooks: {native.why_not}")
def test_after_the_first_step_no_python_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, 64, device="cuda", requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def asked(*_: object) -> None:
        raise AssertionError("Python was asked")

    # Updates and checksums are computed in Python.
    kinds = [kind for kind in KINDS if kind not in ("update", "checksum")]
    with hs.watch(model, optimizer, kinds=kinds) as w:
        step()
        for name in ("observe", "receive", "prepare"):
            monkeypatch.setattr(Site, name, asked)
        step()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert_stats(w.latest["0.weight", "param_grad"], [grads[0].cpu()], 0)
        assert all(row.error is None for row in w.coverage())
        assert w.coverage()["2", "grad_output"].observed == 2


class Idle(Optimizer):
    """Changes nothing, and takes any `grad_scale`, as only fused optimizers do."""

    grad_scale: Tensor

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        pass


@needs_kernel
def test_scaled_gradients_are_divided_on_the_device() -> None:
    model = network_on()
    optimizer = Idle(model.parameters(), {})
    x = torch.randn(256, 64, device="cuda")
    with hs.watch(model, optimizer, kinds=("param_grad",)) as w:
        for step in range(3):
            optimizer.grad_scale = torch.full((), 4.0 + step, device="cuda")
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            gradient = model[2].weight.grad
            assert gradient is not None
            # By a number torch multiplies with its reciprocal, which rounds otherwise.
            expected = (gradient / optimizer.grad_scale).cpu()
            assert_stats(w.latest["2.weight", "param_grad"], [expected], 0)


def test_python_and_cpp_count_the_same(hooks_in: str) -> None:
    """Whatever serves it, what coverage says of a step is the same."""
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, kinds=KINDS) as w:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(32, 64, device="cuda")).sum().backward()
            optimizer.step()
        for row in w.coverage():
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
        assert w.coverage()["2", "output"].observed == 4, hooks_in
        assert w.coverage()["0.bias", "param_grad"].observed == 4


@needs_kernel
def test_a_hundred_steps_allocate_copies_for_updates_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StepSample, "before", lambda *_: None)  # which takes up to 2 MB

    def allocations(watched: bool) -> int:
        model = network_on()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        kinds = [kind for kind in KINDS if kind != "checksum"]
        w = hs.watch(model, optimizer, kinds=kinds) if watched else None
        x = torch.randn(256, 64, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step()
        if w is not None:
            assert w.latest.step == 0
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for _ in range(100):
            step()
        if w is not None:
            assert w.latest.step == 100
        after = torch.cuda.memory_stats()["allocation.all.allocated"]
        if w is not None:
            w.close()
        return int(after - before)

    # Updates need what each parameter was before them.
    parameters = len(list(network_on().parameters()))
    assert allocations(watched=True) == allocations(watched=False) + 100 * parameters


def test_a_model_that_moves_between_devices() -> None:
    model = network_on("cpu")
    with hs.watch(model, kinds=("output", "param")) as w:
        for device in ("cpu", "cuda", "cpu"):
            model.to(device)
            y = model(torch.randn(256, 64, device=device))
            w.step()
            assert_stats(w.latest["2", "output"], [y.cpu()], -1)
            assert_stats(w.latest["2.weight", "param"], [model[2].weight.cpu()], 0)
        assert all(row.error is None for row in w.coverage())


@needs_two
def test_another_device_than_the_current_one() -> None:
    model = network_on("cuda:1")
    with torch.cuda.device(0), hs.watch(model, kinds=("output", "grad_output")) as w:
        y = model(torch.randn(256, 64, device="cuda:1"))
        y.square().sum().backward()
        w.step()
        assert torch.cuda.current_device() == 0
        assert_stats(w.latest["2", "output"], [y.cpu()], -1)
        assert_stats(w.latest["2", "grad_output"], [2 * y.cpu()], -1)


@needs_two
def test_data_parallel_counts_what_each_device_did() -> None:
    model = network_on("cuda:0")
    parallel = nn.DataParallel(model, device_ids=[0, 1])
    with hs.watch(parallel, kinds=("output",)) as w:
        parallel(torch.randn(256, 64, device="cuda:0"))
        w.step()
        row = w.coverage()["2", "output"]
        assert (row.forwards, row.observed, row.skipped) == (2, 2, {})
        assert w.latest["2", "output"].count.tolist() == [256] * 8


def test_a_step_on_two_devices_is_recorded_as_one() -> None:
    """The CPU is one of them."""
    module = nn.Identity()
    here, there = torch.randn(30, 8), torch.randn(50, 8, device="cuda")
    with hs.watch(module, kinds=("output",)) as w:
        for _ in range(3):
            module(here)
            module(there)
            module(here + 1)
            w.step()
            assert_stats(w.latest["", "output"], [here, there.cpu(), here + 1], -1)
        row = w.coverage()["", "output"]
        assert (row.forwards, row.observed, row.skipped) == (9, 9, {})


@pytest.fixture
def side_stream() -> Iterator[torch.cuda.Stream]:
    """A stream to warm up on, as a capture wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    yield stream
    torch.cuda.current_stream().wait_stream(stream)


def test_a_capture_that_no_call_came_before_is_skipped_and_counted(
    side_stream: torch.cuda.Stream,
) -> None:
    """Memory for its sites is not made while the graph is captured."""
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side_stream)
    with hs.watch(model, kinds=MODULE_KINDS) as w:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
        w.step()
        assert len(w.latest) == 0
        row = w.coverage()["2", "output"]
        assert (row.forwards, row.observed) == (1, 0)
        assert row.skipped == {"CUDA graph capture": 1}
        again = model(x)
        w.step()
        assert torch.equal(y, again)
        assert_stats(w.latest["2", "output"], [again.cpu()], -1)


@needs_kernel
@pytest.mark.parametrize("whole", [False, True], ids=["backward", "step"])
def test_replays_of_a_captured_step_are_recorded(
    side_stream: torch.cuda.Stream, whole: bool
) -> None:
    """A whole step in the graph, or all but the optimizer's; in the steps that are due."""
    model = network_on()
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.randn(256, 64, device="cuda")
    kinds = ("input", "output", "grad_output", "param_grad")
    graph = torch.cuda.CUDAGraph()

    def forward_and_backward() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        y: Tensor = model(x)
        y.square().mean().backward()
        if whole:
            optimizer.step()
        return y.detach()

    with hs.watch(model, optimizer, kinds=kinds, every=2) as w:
        with torch.cuda.stream(side_stream):
            for _ in range(4):
                forward_and_backward()
                if not whole:
                    optimizer.step()
        torch.cuda.current_stream().wait_stream(side_stream)
        with torch.cuda.graph(graph):
            y = forward_and_backward()
        assert w.latest.step == 2  # a captured step closes none
        for step in range(4, 9):
            x.normal_()
            graph.replay()
            gradient = model[0].weight.grad
            assert gradient is not None
            before = [t.detach().cpu() for t in (x, y, 2 * y / y.numel(), gradient)]
            w.step() if whole else optimizer.step()
            if step % 2:
                continue
            assert w.latest.step == step
            assert_stats(w.latest["0", "input"], [before[0]], -1)
            assert_stats(w.latest["2", "output"], [before[1]], -1)
            assert_stats(w.latest["2", "grad_output"], [before[2]], -1)
            assert_stats(w.latest["0.weight", "param_grad"], [before[3]], 0)
        rows = w.coverage()
        row = rows["2", "output"]
        assert (row.observed, row.missing) == (5, 0)
        assert row.skipped == {"CUDA graph capture": 1, "step not recorded": 2}
        assert rows["2", "grad_output"].missing == 0
    graph.replay()  # what it writes outlasts the watch
    torch.cuda.synchronize()


@needs_kernel
def test_replays_accumulate_in_recorded_steps_alone(side_stream: torch.cuda.Stream) -> None:
    """Of compiled code, captured by hand in a recorded step and replayed in all."""
    model = network_on()
    x = torch.randn(256, 64, device="cuda")
    with hs.watch(model, kinds=("output",), every=2) as w:
        compiled = torch.compile(model)
        with torch.cuda.stream(side_stream):
            for _ in range(4):
                compiled(x)
                w.step()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        (buffer,) = w._buffers.devices.values()
        for step in range(4, 9):
            x.normal_()
            graph.replay()
            for state in buffer.graphs._states.values():
                assert state.state.tallies.any() == (step % 2 == 0)
            w.step()
            if step % 2 == 0:
                assert w.latest.step == step
                assert_stats(w.latest["2", "output"], [y.cpu()], -1)


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
