"""observe(): a tensor without a module is recorded as a module's output is, in every watch."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict

import pytest
import torch
from support.modules import take_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookstats as hs
from hookstats.hooks import observe as points


class Rotated(nn.Module):
    """A linear layer whose result is changed by a function before the next layer."""

    def __init__(self, name: str = "rotated") -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 2)
        self.name = name

    def inner(self, x: Tensor) -> Tensor:
        rotated = hs.observe(self.name, self.first(x).sin())
        self.seen = rotated.detach()
        return rotated

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.inner(x))
        return out


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    take_step(optimizer, model(torch.randn(5, 6)).square().sum())


def training(name: str = "rotated") -> tuple[Rotated, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Rotated(name)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(autouse=True)
def no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the watches that other tests left open."""
    monkeypatch.setattr(points, "_watches", OrderedDict())
    monkeypatch.setattr(points, "_points", {})


def test_without_a_watch_the_value_comes_back_and_nothing_stays() -> None:
    value = torch.ones(3)
    assert hs.observe("nobody looks", value) is value
    assert "nobody looks" not in points._points


def test_values_and_gradients_are_those_of_the_tensor() -> None:
    model, optimizer = training()
    with hs.watch(model, optimizer, every=1) as w:
        step(model, optimizer)
        record = w.latest
    seen = model.seen.double()
    stats = record["rotated", "output"]
    assert stats.count.tolist() == [5] * 6
    assert torch.allclose(stats.mean, seen.mean(0), atol=1e-6)
    assert ("rotated", "grad_output") in record
    row = next(row for row in w.coverage() if (row.name, row.kind) == ("rotated", "grad_output"))
    assert (row.forwards, row.observed) == (1, 1)


@pytest.mark.parametrize("late", [False, True])
def test_phases_keep_it_apart(late: bool) -> None:
    model, optimizer = training()
    with hs.watch(model, optimizer, every=1) as w:
        if not late:
            step(model, optimizer)
        with w.phase("fake"):
            step(model, optimizer)
        assert ("rotated", "fake:output") in w.latest
        assert ("rotated", "output") not in w.latest


def test_selections_hold_for_its_name() -> None:
    model, optimizer = training()
    with (
        hs.watch(model, optimizer, every=1, exclude="rot*") as without,
        hs.watch(model, optimizer, every=1, include=["last", "rot*"], kinds=("output",)) as chosen,
    ):
        step(model, optimizer)
        assert all(name != "rotated" for name, _ in without.latest)
        assert list(chosen.latest) == [("rotated", "output"), ("last", "output")]


def test_a_name_of_the_model_gets_an_apostrophe() -> None:
    model, optimizer = training("first")
    with hs.watch(model, optimizer, every=1) as w:
        step(model, optimizer)
        assert {("first", "output"), ("first'", "output")} <= set(w.latest)


def test_a_watch_that_is_gone_leaves_no_hook() -> None:
    model, optimizer = training()
    w = hs.watch(model, optimizer, every=1)
    step(model, optimizer)
    w.close()
    dropped = hs.watch(model, every=1)
    del dropped
    gc.collect()
    assert not points._watches
    assert not points._points["rotated"]._forward_hooks
    assert pickle.loads(pickle.dumps(model)).name == copy.deepcopy(model).name


def test_a_recomputation_counts_once() -> None:
    class Checkpointed(Rotated):
        def forward(self, x: Tensor) -> Tensor:
            inner: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            out: Tensor = self.last(inner)
            return out

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hs.watch(model, optimizer, every=1) as w:
        step(model, optimizer)
        assert w.latest["rotated", "output"].count.tolist() == [5] * 6


def test_the_first_call_of_a_name_says_where_the_channels_are() -> None:
    with hs.watch(nn.Linear(2, 2), every=1) as w:
        for _ in range(2):
            hs.observe("heads", torch.randn(2, 3, 5), channel_dim=1)
        hs.observe("whole", torch.randn(2, 3), channel_dim=None)
        w.step()
        record = w.latest
    assert record["heads", "output"].count.tolist() == [20] * 3
    assert record["whole", "output"].count.tolist() == [6]


class Counted(Rotated):
    """A model that records a quantity: the largest value of each sample."""

    calls = 0

    def quantity(self, x: Tensor) -> Tensor:
        self.calls += 1
        assert not torch.is_grad_enabled()
        self.largest = x.amax(1)
        return self.largest

    def inner(self, x: Tensor) -> Tensor:
        rotated = self.first(x).sin()
        assert hs.observe("largest", lambda: self.quantity(rotated), channel_dim=None) is None
        return rotated


def test_a_quantity_is_computed_where_it_is_recorded() -> None:
    model = Counted("")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert model.calls == 0
    with hs.watch(model, optimizer, every=2) as w:
        for _ in range(4):
            with torch.no_grad():
                model.eval()(torch.randn(5, 6))
            step(model.train(), optimizer)
        record = w.latest
        row = w.coverage()["largest", "output"]
    assert model.calls == 2
    assert (record.step, row.forwards, row.observed) == (2, 2, 2)
    assert ("largest", "grad_output") not in record
    hs.observe("largest", model.quantity)
    assert model.calls == 2


def test_a_quantity_that_fails_is_left_out_once() -> None:
    def fails() -> Tensor:
        raise RuntimeError("no such thing")

    with hs.watch(nn.Linear(2, 2), every=1) as w:
        with pytest.warns(RuntimeWarning, match="computing 'bad' failed: RuntimeError: no such"):
            hs.observe("bad", fails)
        hs.observe("bad", fails)
        hs.observe("good", lambda: torch.ones(3))
        w.step()
        assert [name for name, _ in w.latest] == ["good"]


@pytest.mark.parametrize(("name", "dim"), [("", "auto"), (3, "auto"), ("a", "last")])
def test_bad_arguments_are_named(name: str, dim: str) -> None:
    with hs.watch(nn.Linear(2, 2)), pytest.raises(ValueError, match=r"^(name|channel_dim) = "):
        hs.observe(name, torch.ones(2), channel_dim=dim)


@pytest.mark.check
def test_compiled_code_has_it_in_its_one_graph() -> None:
    model, optimizer = training()
    with hs.watch(model, optimizer, every=1) as w:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            step(compiled, optimizer)
        record = w.latest
    assert record["rotated", "output"].count.tolist() == [5] * 6
    assert record["rotated", "grad_output"].count.tolist() == [5] * 6


@pytest.mark.check
def test_compiled_code_leaves_quantities_out(capfd: pytest.CaptureFixture[str]) -> None:
    model = Counted("")
    with hs.watch(model, every=1) as w:
        torch.compile(model, fullgraph=True, backend="aot_eager")(torch.randn(5, 6))
        w.step()
        assert ("largest", "output") not in w.latest
    assert model.calls == 0
    assert "'largest' is not computed in compiled code" in capfd.readouterr().err
