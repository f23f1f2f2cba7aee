"""torch.compile of a watched model: when code is compiled again, what graphs hold and call."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from support.compiled import MARKS, Small, data, dropout_network, needs_gradients, ours, train
from support.paths import python_path
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

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


@pytest.mark.parametrize("how", ["wrapper", "function", "closed"])
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


def test_dynamo_reset_keeps_what_was_recorded() -> None:
    model = Small()
    with watch(model, kinds=("output",)) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data())
            torch._dynamo.reset()
        w.step()
        assert w.latest.observed.tolist() == [2]


def test_a_copy_is_not_watched() -> None:
    model = Small()
    with watch(model, kinds=("output",)) as w:
        twin = copy.deepcopy(model)
        torch.compile(twin, fullgraph=True, backend="aot_eager")(data())
        assert w.coverage()["linear", "output"].forwards == 0


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


@torch.library.custom_op("hookstats_tests::double_", mutates_args=("out",))
def double_(x: Tensor, out: Tensor) -> None:
    """An operator of nobody's."""
    out.copy_(x.detach() * 2)


@double_.register_fake
def _(x: Tensor, out: Tensor) -> None:
    """Nothing is returned."""


def test_opcheck_warns_of_no_more_than_of_another_operator() -> None:
    """From torch 2.14 on it asks its own copies of inputs that require gradients for .grad."""
    leaf = torch.randn(4, 3, requires_grad=True)

    def warned(operator: Any, *given: Any) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.library.opcheck(operator, given)
        return {str(warning.message) for warning in caught}

    of_torch = warned(double_, leaf, torch.empty(4, 3))
    for operator in OPERATORS:
        assert warned(operator, *arguments(operator, leaf)) <= of_torch


@pytest.mark.check
def test_the_states_that_graphs_fill_join_no_graph() -> None:
    training = train(dropout_network(), "aot_eager")
    assert training.watch is not None
    (buffer,) = training.watch._buffers.devices.values()
    states = [tensor for graph in buffer.graphs._states.values() for tensor in graph.state]
    assert len(states) > 20
    for tensor in states:
        assert tensor is None or (tensor.grad_fn is None and not tensor.requires_grad)


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
