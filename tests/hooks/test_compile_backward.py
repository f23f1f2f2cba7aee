"""torch.compile of a watched model: late and repeated backwards, checkpoints, torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.compiled import HOOKED, MARKS, Small, bits, data, needs_gradients, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.hooks import traced
from hookstats.records import reasons
from hookstats.watching.watch import watch

pytestmark = MARKS

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
