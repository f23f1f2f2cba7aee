"""torch.compile of a watched model: what is compiled again; what graphs hold, call, leave out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.compiled import (
    MARKS,
    Small,
    assert_same,
    data,
    dropout_network,
    needs_gradients,
    ours,
    train,
)
from support.paths import python_path
from torch import Tensor, fx, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor import config as inductor

from hookstats._torch import becomes_cuda_graph
from hookstats.kernels.once_ops import count_once_, update_once_
from hookstats.kernels.ops import update_
from hookstats.stats import state
from hookstats.stats.bins import LogBins
from hookstats.watching.watch import watch

pytestmark = MARKS


@pytest.mark.check
def test_steps_that_are_not_recorded_have_one_graph_more() -> None:
    training = train(dropout_network(), "aot_eager", steps=5, settings={"every": 2})
    assert training.graphs == 2
    assert training.records[-1].step == 4
    assert training.coverage()["3", "output"].observed == 3


@needs_gradients
def test_one_cuda_graph_serves_all_steps() -> None:
    """Where inductor is to replay CUDA graphs, operators alone know which steps are recorded."""
    with inductor.patch({"triton.cudagraphs": True}):
        training = train(dropout_network(), "aot_eager", steps=5, settings={"every": 2})
    expected = train(dropout_network(), None, steps=5, settings={"every": 2})
    assert training.graphs == 1
    for got, record in zip(training.records, expected.records, strict=True):
        assert got.step == record.step
        assert_same(got, record)
    row = training.coverage()["3", "output"]
    assert (row.observed, row.skipped) == (3, {"step not recorded": 2})


def test_inductor_is_asked_for_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `becomes_cuda_graph` finds out, by torch's own name of a mode."""
    asked: list[bool] = []
    # It is asked while dynamo traces, before inductor would compile.
    compiler = "torch._inductor.compile_fx.compile_fx"
    monkeypatch.setattr(compiler, lambda graph, inputs, **settings: graph)

    @torch.compiler.assume_constant_result
    def ask() -> None:
        asked.append(becomes_cuda_graph())

    def called(x: Tensor) -> Tensor:
        ask()
        return x + 1

    for settings in ({"mode": "reduce-overhead"}, {}, {"options": {"triton.cudagraphs": True}}):
        torch._dynamo.reset()
        torch.compile(called, **settings)(data())
    assert asked == [True, False, True]


def test_graphs_that_are_replayed_record_the_steps_that_are_due() -> None:
    """As a graph is that was captured by hand: once, in a recorded step, and replayed in all steps
    past dynamo and its guards, with inputs where they were."""
    model, eager = dropout_network().eval(), dropout_network().eval()
    calls: list[Callable[[], Any]] = []

    def capture(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made = torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        def call(*arguments: Any) -> Any:
            calls.append(lambda: made(*arguments))
            return made(*arguments)

        return call

    x = data()
    kinds = ("output", "grad_output")
    with watch(model, kinds=kinds, every=2) as w, watch(eager, kinds=kinds, every=2) as expected:
        torch.compile(model, fullgraph=True, backend=capture)(x)[0].sum().backward()
        eager(x)[0].sum().backward()
        w.step()
        expected.step()
        (replay,) = calls
        (buffer,) = w._buffers.devices.values()
        for step in range(1, 7):
            x.copy_(data())
            replay()[0][0].sum().backward()
            eager(x)[0].sum().backward()
            for state in buffer.graphs._states.values():
                assert state.state.tallies.any() == (step % 2 == 0)
                assert state.state.counts is not None
                assert state.state.counts.any() == (step % 2 == 0)
            w.step()
            expected.step()
            assert w.latest.step == expected.latest.step == step // 2 * 2
            for key in [("1", "output"), ("3", "output"), ("3", "grad_output")]:
                mine, theirs = w.latest[key], expected.latest[key]
                assert mine.count.tolist() == theirs.count.tolist()
                assert mine.mean.tolist() == pytest.approx(theirs.mean.tolist())
        row = w.coverage()["3", "output"]
    assert (row.observed, row.skipped) == (4, {"step not recorded": 3})


def test_pause_and_close_leave_the_graph_without_operators() -> None:
    model = dropout_network()
    w = watch(model)
    graphs = CompileCounterWithBackend("eager")
    call = torch.compile(model, fullgraph=True, backend=graphs)
    for pause, nodes in ((False, True), (True, False)):
        w.pause() if pause else w.resume()
        call(data())
        assert ("hookstats" in graphs.graphs[-1].code) is nodes
    w.resume()
    call(data())
    assert graphs.frame_count == 2
    w.close()
    call(data())
    assert "hookstats" not in graphs.graphs[-1].code
    assert w.coverage()["3", "output"].observed == 2


@pytest.mark.check
@needs_gradients
def test_more_blocks_of_one_class_than_dynamo_compiles_a_function() -> None:
    assert torch._dynamo.config.recompile_limit < 12
    model = nn.Sequential(*(Small() for _ in range(12)))
    with watch(model) as w:
        for block in model:
            block.compile(fullgraph=True, backend="aot_eager")
        for _ in range(2):
            model(data()).sum().backward()
            w.step()
        assert {row.observed for row in w.coverage()} == {2}


@pytest.mark.parametrize(
    "how",
    ["wrapper", *(pytest.param(how, marks=pytest.mark.check) for how in ("function", "closed"))],
)
def test_code_compiled_before_is_compiled_again(how: str) -> None:
    model = Small()
    before = watch(model) if how == "closed" else None
    call: Any = (lambda x: model(x)) if how == "function" else model
    call = torch.compile(call, fullgraph=True, backend="aot_eager")
    other = torch.compile(
        lambda x: nn.functional.gelu(x), backend=CompileCounterWithBackend("eager")
    )
    call(data())
    other(data())
    if before is not None:
        before.close()
        call(data())
    with pytest.warns(
        RuntimeWarning, match=r"hookstats: compiled before the hooks .*: .*Small|forward|<lambda>"
    ):
        w = watch(model, kinds=("output",))
    with w:
        with torch.compiler.set_stance("fail_on_recompile"):
            other(data())
        call(data())
        assert w.coverage()["linear", "output"].observed == 1


@needs_gradients
def test_code_that_was_not_compiled_is_left_alone(recwarn: pytest.WarningsRecorder) -> None:
    torch.compile(nn.Conv1d(1, 1, 1), backend="eager")(torch.randn(1, 1, 3))
    model = Small()
    call = torch.compile(model, fullgraph=True, backend="eager")
    with watch(model) as w:
        call(data())
        assert w.coverage()["linear", "output"].observed == 1
    assert not ours(recwarn)


@pytest.mark.check
def test_dynamo_reset_keeps_what_was_recorded() -> None:
    model = Small()
    with watch(model, kinds=("output",)) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data())
            torch._dynamo.reset()
        w.step()
        assert w.latest.observed.tolist() == [2]


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_none_of_it(strict: bool) -> None:
    model = Small().eval()
    with watch(model) as w:
        program = torch.export.export(model, (data(),), strict=strict)
        assert "hookstats" not in str(program.graph)
        assert w.coverage()["linear", "output"].observed == 0


@pytest.mark.check
def test_close_leaves_nothing() -> None:
    # In a process of its own: what dynamo keeps of the code of other tests is not asked.
    code = "from support.compiled import left_by_close\nprint(left_by_close())\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.check
def test_dynamo_is_not_imported_where_nothing_is_compiled() -> None:
    code = (
        "import sys, torch, hookstats\n"
        "with hookstats.watch(torch.nn.Linear(2, 2)) as w:\n"
        "    w.step()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


OPERATORS = [update_, update_once_, count_once_]


def arguments(operator: Any, x: Tensor) -> list[Any]:
    if operator is count_once_:
        return [torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)]
    bins = LogBins(0)
    return [
        x,
        1,
        state.identity_moments(3),
        state.identity_tallies(3),
        torch.zeros(bins.slots, dtype=torch.int64),
        bins.descriptor("cpu"),
        torch.zeros(3, bins.slots, dtype=torch.int64),
        bins.descriptor("cpu"),
    ]


@pytest.mark.check
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_operators(operator: Any) -> None:
    """opcheck, and what it misses: whether the state joins the graph of what is accumulated."""
    leaf = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(operator, tuple(arguments(operator, leaf)))
    for function in (operator, torch.compile(operator, fullgraph=True, backend="aot_eager")):
        given = arguments(operator, leaf * 2)
        function(*given)
        for tensor in given[2:]:
            if isinstance(tensor, Tensor):
                assert tensor.grad_fn is None
                assert not tensor.requires_grad


@pytest.mark.check
def test_once_operators_skip_backwards() -> None:
    leaf = torch.randn(4, 3, requires_grad=True)
    given = arguments(update_once_, leaf.detach())
    calls, recomputed = arguments(count_once_, leaf)
    y = leaf * 2

    def again(gradient: Tensor) -> None:
        update_once_(*given)
        count_once_(calls, recomputed)

    y.register_hook(again)
    y.sum().backward()
    assert (given[3].sum(), calls, recomputed) == (0, 0, 1)
    again(y)
    assert (given[3][:, state.COUNT].tolist(), calls, recomputed) == ([4, 4, 4], 1, 1)


def drops_operators(graph: fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
    """A backend that leaves out whatever has no result, as functions without effects."""
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return graph.forward


def through_vmap(model: nn.Module) -> Callable[[Tensor], Any]:
    def rows(x: Tensor) -> Any:
        return torch.func.vmap(lambda row: model(row))(x)

    return torch.compile(rows, fullgraph=True, backend="aot_eager")


def through_a_lossy_backend(model: nn.Module) -> Callable[[Tensor], Any]:
    return torch.compile(model, fullgraph=True, backend=drops_operators)


@pytest.mark.parametrize(
    "through", [pytest.param(through_vmap, marks=pytest.mark.check), through_a_lossy_backend]
)
def test_compiled_modules_that_leave_nothing_are_named_at_the_end(
    through: Callable[[nn.Module], Callable[[Tensor], Any]],
) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    w = watch(model, kinds=("output",))
    call = through(model)
    for _ in range(2):
        call(data())
        w.step()
    why = "2 watched modules were compiled and never counted: '0.linear', '1'"
    with pytest.warns(RuntimeWarning, match=f"hookstats: {why}"):
        w.close()
    w.close()  # without another warning
    coverage = w.coverage()
    assert {row.observed for row in coverage} == {0}
    assert coverage.failures == {"recording compiled modules": why}
    assert why in str(coverage)


@pytest.mark.check
def test_what_runs_uncompiled_beside_them_is_not_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Small(), Small())
    w = watch(model, kinds=("output",))
    model[1].compile(fullgraph=True, backend=drops_operators)
    model(data())
    w.step()
    with pytest.warns(RuntimeWarning, match=r"1 watched modules were .*counted: '1\.linear';"):
        w.close()
    observed = {row.name: row.observed for row in w.coverage()}
    assert observed == {"0": 1, "1.linear": 0, "2.linear": 1}


@needs_gradients
def test_what_compiled_code_records_is_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output", "grad_output")) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data()).sum().backward()
            w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)


@pytest.mark.check
def test_modules_that_nothing_calls_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Tanh()})
    with watch(model, kinds=("output",)) as w:
        torch.compile(lambda x: model["used"](x).sigmoid(), backend="aot_eager")(data())
        w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)


class Branches(nn.Module):
    """Calls one of two modules in the bodies of an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,))


class Region(nn.Module):
    """Is compiled once for all modules like it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


@pytest.mark.check
@pytest.mark.parametrize(
    "make",
    [Branches, pytest.param(lambda: nn.Sequential(Region(), Region()), marks=pytest.mark.check)],
)
def test_bodies_of_operators_run_and_are_named(make: Callable[[], nn.Module]) -> None:
    """They may change nothing outside, so that nothing in them can be recorded."""
    model = nn.Sequential(make(), nn.Tanh())
    x = data()
    w = watch(model, kinds=("output", "grad_output"))
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    w.step()
    with pytest.warns(RuntimeWarning, match="2 watched modules were compiled and never counted"):
        w.close()
    assert w.coverage()["1", "output"].observed == 1
    expected = model(x)
    assert torch.equal(got, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    given = torch.autograd.grad(got.sum(), parameters, allow_unused=True)
    for one, other in zip(
        given, torch.autograd.grad(expected.sum(), parameters, allow_unused=True), strict=True
    ):
        assert (one is None or not one.any()) if other is None else torch.equal(one, other)


class Shape(nn.Module):
    """Has no tensor in its output."""

    def forward(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape)


class Shaped(nn.Module):
    """Calls a module that returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = Shape()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.reshape(self.shape(x))


@pytest.mark.check
def test_outputs_without_tensors_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = Shaped()
    with watch(model, kinds=("output",)) as w:
        model(data())
        w.step()
        call = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            call(data())
            w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)


@pytest.mark.check
def test_exported_models_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(Small(), nn.Tanh())
    with watch(model, kinds=("output",)) as w:
        model(data())
        torch.export.export(model, (data(),), strict=True)
        w.step()
    assert not w.coverage().failures
    assert not ours(recwarn)
