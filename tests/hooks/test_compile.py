"""torch.compile of a watched model: the statistics of the eager one, whenever backwards come."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import torch
from support.changed_outputs import CHANGES, MODULES
from support.compiled import (
    HOOKED,
    MARKS,
    Block,
    Small,
    assert_same,
    bits,
    data,
    dropout_network,
    needs_gradients,
    train,
)
from support.modules import Lambda
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats._torch import compiled_functions
from hookstats.hooks import traced
from hookstats.hooks.leaves import leaves
from hookstats.records import reasons
from hookstats.stats.bins import LinearBins
from hookstats.watching.watch import watch

pytestmark = MARKS

EAGER = (pytest.param("eager", marks=pytest.mark.check),)


@needs_gradients
@pytest.mark.parametrize("backend", [*EAGER, "aot_eager"])
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


@pytest.mark.parametrize("backend", [*EAGER, "aot_eager"])
def test_the_compiled_training_is_not_changed_by_a_bit(backend: str) -> None:
    watched, unwatched = (train(dropout_network(), backend, watched) for watched in (True, False))
    assert bits(watched.parameters) == bits(unwatched.parameters)


@pytest.mark.check
@needs_gradients
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


@pytest.mark.check
@needs_gradients
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


@needs_gradients
@pytest.mark.parametrize("backend", [*EAGER, "aot_eager"])
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


@needs_gradients
@pytest.mark.check
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
    # Without gradients in train mode, the first step outside of compiled code may be an evaluation.
    if around not in (torch.no_grad, torch.inference_mode):
        assert compiled.coverage() == eager.coverage()
    assert_same(compiled.records[-1], eager.records[-1])


@pytest.mark.check
@needs_gradients
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


@pytest.mark.check
@needs_gradients
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

    monkeypatch.setattr("hookstats.buffers.double_buffer.DoubleBuffer.accumulator", fail)
    model = Small()
    with watch(model, kinds=("output",)) as w:
        with pytest.warns(RuntimeWarning, match="no longer records output of 'linear'.*no memory"):
            torch.compile(model, fullgraph=True, backend="aot_eager")(data())
        assert w.coverage()["linear", "output"].skipped == {"disabled": 1}


@pytest.mark.check
@needs_gradients
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


@needs_gradients
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.check)])
def test_graph_breaks(backend: str) -> None:
    torch.manual_seed(0)
    model = Breaking()
    compiled = train(copy.deepcopy(model), backend, fullgraph=False, settings={"include": "*"})
    eager = train(model, None, settings={"include": "*"})
    assert compiled.graphs > 1
    assert compiled.coverage() == eager.coverage()
    assert_same(compiled.records[-1], eager.records[-1])


@pytest.mark.check
def test_reduce_overhead() -> None:
    model = Small()
    with watch(model) as w:
        torch.compile(model, mode="reduce-overhead")(data()).sum().backward()
        assert w.coverage()["linear", "grad_output"].observed == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_meta_tensors_are_counted_as_skipped(backend: str) -> None:
    model = Small().to("meta")
    with watch(model, kinds=("output",)) as w:
        torch.compile(model, fullgraph=True, backend=backend)(data().to("meta"))
        w.step()
        assert w.coverage()["linear", "output"].skipped == {"meta tensor": 1}


@pytest.mark.check
@pytest.mark.parametrize("closes", ["optimizer", "hand"])
def test_a_compiled_step_of_the_training_does_not_trace_hookstats(closes: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer if closes == "optimizer" else None) as w:

        def step(x: Tensor) -> None:
            model(x).square().mean().backward()
            if closes == "hand":
                w.step()
                w.log(loss=1.0)

        step = torch.compile(step, backend="eager") if closes == "hand" else step
        update = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            step(torch.randn(3, 4))
            update()
        assert w.open_step == 3
        assert w.latest["0.weight", "param_grad"].count.sum() == 16
    compiled = {code.co_filename for code, _ in compiled_functions()}
    assert not [name for name in compiled if name.endswith(("steps.py", "handle.py"))]


BACKENDS = ["eager", *(pytest.param(b, marks=pytest.mark.check) for b in ("aot_eager", "inductor"))]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return result


@pytest.mark.check
@pytest.mark.parametrize(
    ("backend", "reentrant"),
    [
        ("aot_eager", False),
        *(pytest.param(b, True, marks=pytest.mark.check) for b in ("eager", "aot_eager")),
    ],
)
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


@pytest.mark.check
@needs_gradients
@pytest.mark.parametrize(
    ("backend", "reentrant"),
    [
        ("aot_eager", False),
        *(pytest.param(b, True, marks=pytest.mark.check) for b in ("eager", "aot_eager")),
    ],
)
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


@needs_gradients
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


@pytest.mark.check
@needs_gradients
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


@pytest.mark.check
@pytest.mark.parametrize(
    "transform", [torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())]
)
def test_torch_func_in_a_graph(transform: Callable[[Any], Any]) -> None:
    model = Small()
    with watch(model) as w:
        torch.compile(lambda x: transform(model)(x), fullgraph=True, backend="aot_eager")(data())
        assert w.coverage()["linear", "output"].forwards == 0


@pytest.mark.check
@needs_gradients
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


@pytest.mark.check
def test_where_compiled_backwards_compare_versions_gradients_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch 2.10 does: two calls before their backwards would fail there."""
    monkeypatch.setattr(traced, "can_save_without_version", lambda: False)
    model = Small()
    with watch(model, kinds=("output", "grad_output")) as w:
        call = torch.compile(model, fullgraph=True, backend="aot_eager")
        with pytest.warns(RuntimeWarning, match=r"not recorded; torch 2\.11 records them"):
            one, two = (call(data()).square().sum() for _ in range(2))
        one.backward()
        w.step()
        two.backward()
        w.step()
        rows = {row.kind: row for row in w.coverage()}
    assert rows["output"].observed == 2
    assert rows["grad_output"].observed == 0
    assert rows["grad_output"].skipped == {reasons.OLD_COMPILER: 2}
