"""torch.compile of a watched model: the statistics of the eager one, from one graph."""

from __future__ import annotations

import copy
import gc
import itertools
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.modules import Lambda
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from hookstats.hooks.coverage import SiteCoverage
from hookstats.hooks.leaves import leaves
from hookstats.kernels.once_ops import count_once_, update_once_
from hookstats.kernels.ops import update_
from hookstats.records.record import StepRecord
from hookstats.stats import state
from hookstats.stats.bins import LinearBins, LogBins
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

pytestmark = [  # warnings of torch about itself
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
]

BACKENDS = ["eager", "aot_eager", "inductor"]
HOOKED = ("input", "grad_input", "output", "grad_output")


@pytest.fixture(autouse=True, scope="module")
def _inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("inductor")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        yield


class Block(nn.Module):
    """A view that is changed in place, and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        return self.relu(self.first(x * 2))


def dropout_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2, inplace=True), Block(), nn.Linear(4, 2))


def data() -> Tensor:
    return torch.randn(2, 5, 3)


class Training(NamedTuple):
    watch: Watch | None
    records: list[StepRecord]
    parameters: list[Tensor]
    graphs: int

    def coverage(self) -> dict[tuple[str, str], SiteCoverage]:
        assert self.watch is not None
        return {(row.name, row.kind): row for row in self.watch.coverage()}


def train(
    model: nn.Module,
    backend: str | None,
    watched: bool = True,
    inputs: Callable[[], Tensor] = data,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    loss: Callable[[Any], Tensor] = lambda y: y.square().sum(),
    steps: int = 2,
    settings: dict[str, Any] | None = None,
    **compile_settings: Any,
) -> Training:
    """Train `model`, compiled unless the backend is None."""
    torch._dynamo.reset()
    settings = {"kinds": (*HOOKED, "param_grad"), **(settings or {})}
    optimizer = SGD(model.parameters(), lr=0.01)
    w = watch(model, optimizer, **settings) if watched else None
    counter = CompileCounterWithBackend(backend or "eager")
    call: Any = model
    if backend is not None:
        call = torch.compile(model, backend=counter, **{"fullgraph": True, **compile_settings})
    torch.manual_seed(1)
    records = []
    for _ in range(steps):
        optimizer.zero_grad()
        with around():
            y = call(inputs())
        value = loss(y)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        if w is not None:
            records.append(w.latest)
    parameters = [p.detach().clone() for p in model.parameters()]
    return Training(w, records, parameters, counter.frame_count)


def assert_same(got: StepRecord, expected: StepRecord, shapes: bool = True) -> None:
    """The same sites and counts, moments up to rounding; gradients may come in another order."""
    assert sorted(got.keys()) == sorted(expected.keys())
    observed = dict(zip(expected.keys(), expected.observed, strict=True))
    infos = {(info.name, info.kind): info for info in expected.sites}
    for info, count in zip(got.sites, got.observed, strict=True):
        key = info.name, info.kind
        assert count == observed[key], key
        assert not shapes or info == infos[key]
        assert torch.equal(got[key].tallies, expected[key].tallies), key
        torch.testing.assert_close(
            got[key].moments, expected[key].moments, rtol=1e-4, atol=1e-5, msg=str(key)
        )


def bits(tensors: list[Tensor]) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_graph_with_the_statistics_of_the_eager_model(backend: str) -> None:
    settings = {"include": "*", "channel_bins": LinearBins(8, -1.0, 1.0)}
    compiled = train(dropout_network().eval(), backend, settings=settings)
    eager = train(dropout_network().eval(), None, settings=settings)
    assert compiled.graphs == 1
    for got, expected in zip(compiled.records, eager.records, strict=True):
        assert_same(got, expected)
    assert compiled.coverage() == eager.coverage()
    assert compiled.coverage()["2.first", "grad_output"].observed == 4


@pytest.mark.check
def test_inductor() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return Block()

    def inputs() -> Tensor:
        return torch.randn(2, 5, 4)

    compiled = train(model(), "inductor", inputs=inputs)
    eager = train(model(), None, inputs=inputs)
    unwatched = train(model(), "inductor", watched=False, inputs=inputs)
    assert compiled.graphs == 1
    assert_same(compiled.records[-1], eager.records[-1])
    assert compiled.coverage() == eager.coverage()
    # What is observed is not fused away, and so may be rounded otherwise.
    torch.testing.assert_close(compiled.parameters, unwatched.parameters, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_compiled_training_is_not_changed_by_a_bit(backend: str) -> None:
    watched, unwatched = (train(dropout_network(), backend, watched) for watched in (True, False))
    assert bits(watched.parameters) == bits(unwatched.parameters)


@pytest.mark.parametrize("change", ["relu", "several", "used before", "a part"])
@pytest.mark.parametrize("name", ["biased linear", "flatten", "part of transposed"])
def test_views_that_are_changed_in_place(name: str, change: str) -> None:
    make, shape, channel_dim = MODULES[name]
    module = make()
    x = torch.randn(shape, requires_grad=True)

    def loss() -> Tensor:
        end = CHANGES[change](module(x * 1), True)
        return (end * (torch.arange(end.numel()).view(end.shape) - 3.0)).sum()

    records = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        with watch(module, kinds=HOOKED, include="", channel_dim=channel_dim) as w:
            function().backward()
            w.step()
            records.append(w.latest)
            assert w.coverage()["", "grad_output"].missing == 0
    assert_same(records[1], records[0])


class Outputs(NamedTuple):
    logits: Tensor
    rest: list[Any]


CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "dict": lambda x: {"logits": x * 2, "a b": (x * 3, [x * 4, 7]), "none": None},
    "ordered dict": lambda x: OrderedDict(logits=x * 2),
    "named tuple": lambda x: Outputs(x * 2, [x.long(), "text"]),
    "chunks": lambda x: x.chunk(2, -1),
    "its input": lambda x: [x],
}


def sum_of_all(value: Any) -> Tensor:
    return torch.stack([x.sum() for _, x in leaves(value) if x.is_floating_point()]).sum()


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_in_containers(name: str) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), Lambda(CONTAINERS[name]))

    compiled = train(model(), "aot_eager", loss=sum_of_all)
    eager = train(model(), None, loss=sum_of_all)
    assert_same(compiled.records[-1], eager.records[-1])
    assert compiled.coverage() == eager.coverage()
    assert compiled.graphs == 1


class Shared(nn.Module):
    """One module in a loop, one whose gradient never comes, and a parameter without one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.aside = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x)
        self.aside(x)
        for _ in range(3):
            x = self.shared(x).tanh()
        return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_calls_are_counted_as_in_eager_mode(backend: str) -> None:
    torch.manual_seed(0)
    model = Shared()
    compiled = train(copy.deepcopy(model), backend)
    eager = train(model, None)
    assert compiled.coverage() == eager.coverage()
    assert_same(compiled.records[-1], eager.records[-1])
    assert compiled.coverage()["shared", "grad_output"].observed == 6
    assert compiled.coverage()["aside", "grad_output"].missing == 2
    assert compiled.coverage()["frozen", "grad_output"].skipped == {"requires no gradient": 2}


@pytest.mark.parametrize(
    "around",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_modes(around: Callable[[], AbstractContextManager[Any]]) -> None:
    def loss(y: Tensor) -> Tensor:
        return y.float().square().sum()

    compiled = train(dropout_network(), "aot_eager", around=around, loss=loss)
    eager = train(dropout_network(), None, around=around, loss=loss)
    assert compiled.coverage() == eager.coverage()
    assert_same(compiled.records[-1], eager.records[-1])


def test_train_and_eval_in_one_step() -> None:
    model = dropout_network()
    with watch(model, include="3") as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            call(data()).sum().backward()
            with torch.no_grad():
                call(data())
            w.step()
        row = w.coverage()["3", "grad_output"]
        assert (row.forwards, row.observed) == (4, 2)
        assert row.skipped == {"requires no gradient": 2}
        assert w.latest["3", "output"].count.tolist() == [20, 20]


def test_training_after_a_first_call_in_inference_mode() -> None:
    model = Small()
    with watch(model) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.inference_mode():
            call(data())
        with torch.no_grad():
            call(data())
        call(data()).sum().backward()
        w.step()
        row = w.coverage()["linear", "grad_output"]
        assert (row.observed, row.skipped) == (1, {"requires no gradient": 2})
        assert w.latest["linear", "output"].count.tolist() == [30] * 3


def test_a_site_that_fails_while_traced_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("hookstats.arena.arena.Arena.accumulator", fail)
    model = Small()
    with watch(model, kinds=("output",)) as w:
        with pytest.warns(RuntimeWarning, match="no longer records output of 'linear'.*no memory"):
            torch.compile(model, fullgraph=True, backend="aot_eager")(data())
        assert w.coverage()["linear", "output"].skipped == {"disabled": 1}


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


@pytest.mark.parametrize("dynamic", [None, True])
def test_dynamic_shapes(dynamic: bool | None) -> None:
    def inputs() -> Callable[[], Tensor]:
        sizes = itertools.count(5)
        return lambda: torch.randn(next(sizes), 3)

    compiled = train(
        dropout_network().eval(), "aot_eager", inputs=inputs(), steps=4, dynamic=dynamic
    )
    eager = train(dropout_network().eval(), None, inputs=inputs(), steps=4)
    settings = {"steps": 4, "dynamic": dynamic, "watched": False}
    unwatched = train(dropout_network().eval(), "aot_eager", inputs=inputs(), **settings)
    assert compiled.graphs == unwatched.graphs
    assert_same(compiled.records[-1], eager.records[-1], shapes=False)
    shapes = {info.kind: info.shape for info in compiled.records[-1].sites if info.name == "3"}
    assert shapes["output"] == (-1, 2)  # one graph for every batch size knows none


def test_another_number_of_channels_is_skipped() -> None:
    channels = itertools.count(3)
    module = nn.Tanh()
    with watch(module, kinds=("output",)) as w:
        call = torch.compile(module, fullgraph=True, backend="aot_eager")
        for _ in range(3):
            call(torch.randn(2, next(channels)))
        assert w.coverage()["", "output"].skipped == {"other number of channels": 2}
        assert w.coverage()["", "output"].observed == 1


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.inner = Lambda(self.interrupted)

    @staticmethod
    def interrupted(x: Tensor) -> Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x)).relu_()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graph_breaks(backend: str) -> None:
    torch.manual_seed(0)
    model = Breaking()
    compiled = train(copy.deepcopy(model), backend, fullgraph=False, settings={"include": "*"})
    eager = train(model, None, settings={"include": "*"})
    assert compiled.graphs > 1
    assert compiled.coverage() == eager.coverage()
    assert_same(compiled.records[-1], eager.records[-1])


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_in_a_graph_counts_once(reentrant: bool, backend: str) -> None:
    def inputs() -> Tensor:
        return data().requires_grad_()

    model = Checkpointed(reentrant)
    compiled = train(model, backend, inputs=inputs)
    plain = train(Checkpointed(reentrant).block, None, inputs=inputs)
    expected = {f"block.{name}": row.observed for (name, _), row in plain.coverage().items()}
    for (name, _), row in compiled.coverage().items():
        assert row.observed in (expected[name], 0), row
    assert compiled.graphs == 1
    unwatched = train(Checkpointed(reentrant), backend, watched=False, inputs=inputs)
    assert bits(compiled.parameters) == bits(unwatched.parameters)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_graph_in_a_checkpoint_counts_once(reentrant: bool, backend: str) -> None:
    model = Checkpointed(reentrant)
    with watch(model, kinds=HOOKED) as w:
        model.block = torch.compile(model.block, fullgraph=True, backend=backend)
        for _ in range(2):
            model(data().requires_grad_()).square().sum().backward()
            w.step()
            assert set(w.latest.observed.tolist()) == {1}
        rows = {(row.name, row.kind): row for row in w.coverage()}
    row = rows["block.0", "output"]
    assert (row.observed, row.skipped) == (2, {"recomputation": 2})
    if not reentrant:
        row = rows["block.0", "grad_output"]
        assert (row.observed, row.missing, row.skipped) == (2, 0, {"recomputation": 2})


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_backwards_that_come_later(backend: str) -> None:
    """Two calls before their backwards, a step closed between, and one not recorded."""
    model = Small()
    with watch(model, kinds=("output", "grad_output"), every=2) as w:
        call = torch.compile(model, fullgraph=True, backend=backend)
        one, two, three = (call(data()).square().sum() for _ in range(3))
        one.backward()
        two.backward()
        w.step()
        assert w.latest.observed.tolist() == [3, 2]
        three.backward()
        w.step()
        call(data()).square().sum().backward()
        w.step()
        assert w.latest.observed.tolist() == [1, 1]
        assert w.latest["linear", "grad_output"].count.tolist() == [10] * 3
        row = w.coverage()["linear", "grad_output"]
    assert (row.forwards, row.observed, row.backwards, row.missing) == (4, 3, 4, 0)
    assert row.skipped == {"step not recorded": 1}


@torch._functorch.config.patch(donated_buffer=False)  # torch asks for it
def test_several_backwards_of_one_call() -> None:
    model = Small()
    with watch(model, kinds=("grad_output",)) as w:
        loss = torch.compile(model, fullgraph=True, backend="aot_eager")(data()).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        w.step()
        assert w.latest.observed.tolist() == [2]
        row = w.coverage()["linear", "grad_output"]
    assert (row.forwards, row.observed, row.backwards, row.missing) == (1, 1, 2, 0)


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


def test_code_that_was_not_compiled_is_left_alone(recwarn: pytest.WarningsRecorder) -> None:
    torch.compile(nn.Conv1d(1, 1, 1), backend="eager")(torch.randn(1, 1, 3))
    model = Small()
    call = torch.compile(model, fullgraph=True, backend="eager")
    with watch(model) as w:
        call(data())
        assert w.coverage()["linear", "output"].observed == 1
    assert not recwarn


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


@pytest.mark.parametrize(
    "transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())]
)
def test_torch_func_in_a_graph(transform: Callable[[Any], Any]) -> None:
    model = Small()
    with watch(model) as w:
        torch.compile(lambda x: transform(model)(x), fullgraph=True, backend="aot_eager")(data())
        assert w.coverage()["linear", "output"].forwards == 0


def test_compiled_autograd() -> None:
    model = Small()
    with watch(model) as w, torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile(backend="aot_eager")
        def step(x: Tensor) -> None:
            model(x).sum().backward()

        for _ in range(2):
            step(data())
            w.step()
        assert w.coverage()["linear", "grad_output"].observed == 2


def test_reduce_overhead() -> None:
    model = Small()
    with watch(model) as w:
        torch.compile(model, mode="reduce-overhead")(data()).sum().backward()
        assert w.coverage()["linear", "grad_output"].observed == 1


def test_close_leaves_nothing() -> None:
    model = Small()
    before = set(globals())
    w = watch(model)
    call = torch.compile(model, fullgraph=True, backend="aot_eager")
    call(data()).sum().backward()
    w.close()
    assert set(globals()) == before  # where dynamo leaves constants of what it traces
    assert not model.linear._forward_hooks
    arena, module = weakref.ref(w._arena), weakref.ref(model)
    del w, model, call
    gc.collect()
    assert (arena(), module()) == (None, None)


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
    """opcheck, and what it misses: whether the state joins the graph of what is folded in."""
    leaf = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(operator, tuple(arguments(operator, leaf)))
    for function in (operator, torch.compile(operator, fullgraph=True, backend="aot_eager")):
        given = arguments(operator, leaf * 2)
        function(*given)
        for tensor in given[2:]:
            if isinstance(tensor, Tensor):
                assert tensor.grad_fn is None
                assert not tensor.requires_grad


def test_the_states_that_graphs_fill_join_no_graph() -> None:
    training = train(dropout_network(), "aot_eager")
    assert training.watch is not None
    (shelf,) = training.watch._arena.shelves.values()
    states = [tensor for graph in shelf.graphs._states.values() for tensor in graph.state]
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


def test_dynamo_is_not_imported_where_nothing_is_compiled() -> None:
    code = (
        "import sys, torch, hookstats\n"
        "with hookstats.watch(torch.nn.Linear(2, 2)) as w:\n"
        "    w.step()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
