"""Phases: the same module in several roles, and evaluation kept apart from training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import needs_gradients
from support.modules import network
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import hookstats as hs
from hookstats.watching.watch import watch

pytestmark = pytest.mark.usefixtures("hooks_in")


def ones(value: float) -> Tensor:
    return torch.full((2, 3), value)


def test_a_module_in_two_roles_has_two_sets_of_sites() -> None:
    """Gradients are of the phase of their forward, though the backward runs outside of it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    kinds = ("input", "output", "grad_output", "grad_input", "param_grad")
    with watch(model, optimizer, kinds=kinds) as w:
        for step in range(3):
            optimizer.zero_grad()
            real = model(ones(1.0))
            with w.phase("fake"):
                fake = model(ones(5.0))
            (real.sum() - 2 * fake.sum()).backward()
            optimizer.step()
            record = w.latest
            assert record["0", "input"].amax.max() == 1
            assert record["0", "fake:input"].amax.max() == 5
            gradient = record["0", "grad_output"].mean
            assert torch.equal(record["0", "fake:grad_output"].mean, -2 * gradient), step
            assert record["0.weight", "param_grad"].count.sum() == 12
            assert not [kind for name, kind in record if name == "0.weight" and ":" in kind]
        row = w.coverage()["0", "fake:grad_output"]
        assert (row.forwards, row.observed, row.missing) == (3, 3, 0)


def test_phases_nest_and_end_with_an_error() -> None:
    model = network()
    with watch(model, kinds=("output",), include="0") as w:
        with w.phase("a"):
            model(ones(1.0))
            with w.phase("b-2"):
                model(ones(1.0))
                model(ones(1.0))
            model(ones(1.0))
        with pytest.raises(KeyError), w.phase("a"):
            raise KeyError
        model(ones(1.0))
        w.step()
        record = w.latest
        assert dict(zip(record, record.observed.tolist(), strict=True)) == {
            ("0", "a:output"): 2,
            ("0", "b-2:output"): 2,
            ("0", "output"): 1,
        }


@pytest.mark.parametrize("name", ["", "a b", "a:b", "1", "x.y", None, 3])
def test_a_phase_needs_a_name_that_keys_can_have(name: Any) -> None:
    model = network()
    with watch(model) as w, pytest.raises(ValueError, match=r"phase = .*: expected letters"):
        w.phase(name)
    with pytest.raises(ValueError, match="closed"):
        w.phase("fake")


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.check)])
def test_a_phase_keeps_an_evaluation_apart(compiled: bool) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    call = torch.compile(model, backend="aot_eager") if compiled else model
    with watch(model, optimizer, kinds=("input", "output"), include="0") as w:
        for _ in range(2):
            call(ones(1.0)).sum().backward()
            optimizer.step()
            record = w.latest
            assert record["0", "input"].amax.max() == 1
            assert record["0", "input"].count.sum() == 6
            model.eval()
            with torch.no_grad(), w.phase("evaluation"):
                for _ in range(3):
                    call(ones(7.0))
            model.train()
        assert record["0", "evaluation:input"].amax.max() == 7
        assert record["0", "evaluation:output"].count.sum() == 24
        assert w.coverage()["0", "output"].skipped == {}
        assert w.coverage()["0", "evaluation:output"].observed == 6


@pytest.mark.check
@needs_gradients
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.check), "aot_eager"])
def test_compiled_calls_are_of_their_phase(backend: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, kinds=("input", "output", "grad_output")) as w:
        call = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            real = call(ones(1.0))
            with w.phase("fake"):
                fake = call(ones(5.0))
            (real.sum() - 2 * fake.sum()).backward()
            optimizer.step()
            record = w.latest
            assert record["0", "input"].amax.max() == 1
            assert record["0", "fake:input"].amax.max() == 5
            gradient = record["0", "grad_output"].mean
            assert torch.allclose(record["0", "fake:grad_output"].mean, -2 * gradient)
        assert w.coverage()["0", "fake:output"].observed == 3


def test_a_step_that_is_compiled_as_a_whole_has_its_phases() -> None:
    model = nn.Linear(3, 4)
    with watch(model, kinds=("input",)) as w:

        @torch.compile(backend="eager")
        def step() -> Tensor:
            real = model(ones(1.0))
            with w.phase("fake"):
                fake = model(ones(5.0))
            return real + fake

        for _ in range(2):
            step()
            w.step()
            assert w.latest["", "input"].amax.max() == 1
            assert w.latest["", "fake:input"].amax.max() == 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_is_counted_outside_of_the_phase(reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    optimizer = SGD(block.parameters(), lr=0.1)
    with watch(block, optimizer, kinds=("output",), include="0") as w:
        for _ in range(2):
            x = ones(1.0).requires_grad_()
            real = checkpoint(block, x, use_reentrant=reentrant)
            with w.phase("fake"):
                fake = [checkpoint(block, x, use_reentrant=reentrant) for _ in range(2)]
            (real + sum(fake)).sum().backward()
            optimizer.step()
        coverage = w.coverage()
        assert coverage["0", "output"].skipped == {"recomputation": 6}
        assert coverage["0", "output"].observed == 2
        assert coverage["0", "fake:output"].skipped == {}
        assert coverage["0", "fake:output"].observed == 4


def test_training_keeps_every_bit() -> None:
    def train(watched: bool) -> list[Tensor]:
        torch.manual_seed(1)
        model = network()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        w = watch(model, optimizer) if watched else None
        for _ in range(3):
            optimizer.zero_grad()
            real = model(torch.randn(4, 3))
            if w is None:
                fake = model(torch.randn(4, 3))
            else:
                with w.phase("fake"):
                    fake = model(torch.randn(4, 3))
            (real.square().mean() - fake.mean()).backward()
            optimizer.step()
        if w is not None:
            w.close()
        return [*model.parameters(), torch.get_rng_state()]

    for mine, theirs in zip(train(True), train(False), strict=True):
        assert torch.equal(mine, theirs)


@pytest.fixture
def run(tmp_path: Path) -> hs.Run:
    """Steps 0 to 3 of two phases, of which step 2 has one alone."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    kinds = ("output", "grad_output", "param_grad")
    with watch(model, optimizer, kinds=kinds, include="0", out=tmp_path / "run") as w:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(ones(1.0)).sum()
            if step != 2:
                with w.phase("fake"):
                    loss = loss + 3 * model(ones(2.0)).sum()
            loss.backward()
            optimizer.step()
    return hs.open_run(tmp_path / "run")


def test_a_run_is_read_as_it_was_recorded(run: hs.Run) -> None:
    assert list(run[1]) == [
        ("0", "output"),
        ("0", "fake:output"),
        ("0", "fake:grad_output"),
        ("0", "grad_output"),
        ("0.weight", "param_grad"),
        ("0.bias", "param_grad"),
    ]
    fake = run["0", "fake:output"]
    assert list(fake) == [("0", "fake:output")]
    assert fake["0", "fake:output"].steps.tolist() == [0, 1, 3]
    assert run["0", "output"]["0", "output"].steps.tolist() == [0, 1, 2, 3]
    assert set(run["0", "fake:*"]) == {("0", "fake:output"), ("0", "fake:grad_output")}
    assert run[3]["0", "fake:output"].count.sum() == 8
    with pytest.raises(KeyError, match="did you mean 'fake:output'"):
        run["0", "fak:output"]


def test_tables_have_the_phase_in_the_kind(run: hs.Run) -> None:
    rows = run.table(["step", "site", "kind"]).to_pylist()
    assert not any(":" in row["kind"] for row in rows if row["step"] == 2)
    found = {(row["site"], row["kind"]) for row in rows}
    assert {("0", "fake:output"), ("0", "output")} <= found
