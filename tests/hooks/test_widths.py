"""A module that is used at several widths: every width has a site, and nothing is dropped."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.compiled import MARKS, needs_gradients
from support.expected import assert_adds_up, assert_stats
from support.modules import Lambda
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.hooks.modules import ModuleHook
from hookstats.hooks.sites import Site
from hookstats.records.record import StepRecord
from hookstats.watching.watch import watch

HOOKED = ("input", "grad_input", "output", "grad_output")

pytestmark = MARKS


class Reused(nn.Module):
    """One Tanh after each of several linear layers, whose widths are given."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(3, width) for width in widths)
        self.act = nn.Tanh()
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.act(linear(x)) for linear in self.linears]
        if not torch.compiler.is_compiling():
            self.outputs += outputs
        return torch.stack([out.square().mean() for out in outputs]).sum()


def names(record: StepRecord, kind: str, prefix: str = "act") -> dict[str, int]:
    """The number of channels by name of the sites of a module."""
    return {
        info.name: info.channels
        for info in record.sites
        if info.kind == kind and info.name.startswith(prefix)
    }


@contextmanager
def python_hooks_called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The outputs that the C++ hooks hand on to Python."""
    called: list[object] = []
    observe = ModuleHook.__call__

    def counted(self: ModuleHook, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        called.append(out)
        observe(self, module, args, out)

    with monkeypatch.context() as patch:
        patch.setattr(ModuleHook, "__call__", counted)
        yield called


def test_each_width_has_a_site(hooks_in: str) -> None:
    model = Reused(4, 6, 4, 8)
    with watch(model, kinds=HOOKED, include="act") as w:
        for _ in range(2):
            model.outputs.clear()
            x = torch.randn(5, 3)
            model(x).backward()
            w.step()
        record = w.latest
        a, b, c, d = model.outputs
        for kind in HOOKED:
            assert names(record, kind) == {"act": 4, "act[6ch]": 6, "act[8ch]": 8}
        assert_stats(record["act", "output"], [a, c], -1)
        assert_stats(record["act[6ch]", "output"], [b], -1)
        assert_stats(record["act[8ch]", "output"], [d], -1)
        gradients = [2 * out / out.numel() for out in (a, b, c, d)]
        assert_stats(record["act", "grad_output"], gradients[::2], -1)
        assert_stats(record["act[6ch]", "grad_output"], [gradients[1]], -1)
        assert [w.coverage()[key].forwards for key in record if key[1] == "output"] == [4, 2, 2]
        assert [row.skipped for row in w.coverage()] == [{}] * 12
        assert_adds_up(w)


def test_widths_from_the_fifth_on_share_a_site(hooks_in: str) -> None:
    flatten = nn.Flatten(0)
    with watch(flatten, kinds=("output", "grad_output")) as w:
        seen = []
        for batch in (2, 3, 4, 5, 6, 7, 3, 8):
            seen.append(torch.randn(batch, 3, requires_grad=True) * 1)
            flatten(seen[-1]).square().sum().backward()
        w.step()
        record = w.latest
        suffixes = ["", "[9ch]", "[12ch]", "[15ch]", "[whole]"]
        assert names(record, "output", "") == dict(zip(suffixes, (6, 9, 12, 15, 1), strict=True))
        assert names(record, "grad_output", "") == names(record, "output", "")
        assert_stats(record["[9ch]", "output"], [seen[1].flatten(), seen[6].flatten()], 0)
        assert_stats(record["[whole]", "output"], [seen[4], seen[5], seen[7]], None)
        assert_stats(record["[whole]", "grad_output"], [2 * seen[i] for i in (4, 5, 7)], None)
        assert sum(row.observed for row in w.coverage()) == 2 * len(seen)
        assert_adds_up(w)


@pytest.mark.parametrize("kinds", [("output",), ("grad_output",), ("output", "grad_output")])
def test_two_widths_in_turn_stay_in_the_cpp_hooks(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with python_hooks_called(monkeypatch) as called:
        model = Reused(4, 6)
        receive, received = Site.receive, list[Tensor]()

        def counted(self: Site, gradient: Tensor, *about: Any) -> None:
            received.append(gradient)
            receive(self, gradient, *about)

        monkeypatch.setattr(Site, "receive", counted)
        with watch(model, kinds=kinds, include="act") as w:
            for _ in range(5):
                model(torch.randn(5, 3)).backward()
                w.step()
            assert len(called) == 2
            assert len(received) == (2 if "grad_output" in kinds else 0)
            assert {row.forwards for row in w.coverage()} == {5}
            assert_adds_up(w)


def test_the_first_width_has_the_plain_name_in_values_and_gradients(hooks_in: str) -> None:
    model = Reused(4, 6)
    with watch(model, kinds=("output", "grad_output"), include="act") as w:
        with torch.no_grad():
            model.act(torch.ones(5, 7))
        model(torch.randn(5, 3)).backward()
        w.step()
        assert names(w.latest, "output") == {"act": 7, "act[4ch]": 4, "act[6ch]": 6}
        assert names(w.latest, "grad_output") == {"act[4ch]": 4, "act[6ch]": 6}
        assert w.coverage()["act", "grad_output"].skipped == {"requires no gradient": 1}


def test_what_cannot_be_observed_takes_no_name(hooks_in: str) -> None:
    module = Lambda(lambda x: x)
    with watch(module, kinds=("output",)) as w:
        for x in (torch.arange(3), torch.ones(2, 0), torch.ones(2, 5), torch.ones(2, 3)):
            module(x)
        w.step()
        assert names(w.latest, "output", "") == {"": 5, "[3ch]": 3}
        assert w.coverage()["", "output"].skipped == {"dtype int64": 1, "no channels": 1}
        assert_adds_up(w)


def test_the_leaves_of_an_output_have_widths_of_their_own(hooks_in: str) -> None:
    module = Lambda(lambda n: (torch.ones(2, n), torch.ones(2, 9 - n)))
    with watch(module, kinds=("output",)) as w:
        for n in (4, 6, 4, 6, 4):
            module(n)
        w.step()
        sites = [(info.name, info.kind, info.channels) for info in w.latest.sites]
        assert sites == [
            ("", "output", 4),
            ("", "output[1]", 5),
            ("[6ch]", "output", 6),
            ("[3ch]", "output[1]", 3),
        ]
        assert_adds_up(w)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputations_count_at_their_widths(reentrant: bool, hooks_in: str) -> None:
    model = Reused(4, 6)
    with watch(model, kinds=("output", "grad_output"), include="act") as w:
        for _ in range(3):
            x = torch.randn(5, 3, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).backward()
            w.step()
        for row in w.coverage():
            assert (row.forwards, row.skipped["recomputation"]) == (6, 3)
        assert names(w.latest, "output") == {"act": 4, "act[6ch]": 6}
        assert_adds_up(w)


@needs_gradients
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.check), "aot_eager"])
def test_compiled_models_have_the_same_sites(backend: str) -> None:
    torch.manual_seed(0)
    eager = Reused(4, 6, 4, 8)
    compiled = copy.deepcopy(eager)
    x = torch.randn(5, 3)
    records = []
    for model, call in ((eager, eager), (compiled, torch.compile(compiled, backend=backend))):
        with watch(model, kinds=HOOKED, include="act") as w:
            call(x).backward()
            w.step()
            records.append(w.latest)
            assert_adds_up(w)
    assert set(records[0]) == set(records[1])
    for key, stats in records[0].items():
        assert torch.equal(stats.tallies, records[1][key].tallies)
        torch.testing.assert_close(stats.moments, records[1][key].moments)


@pytest.mark.check
def test_a_compiled_module_of_many_widths_is_observed() -> None:
    flatten = nn.Flatten(0)
    with watch(flatten, kinds=("output",)) as w:
        call = torch.compile(flatten, fullgraph=True, backend="aot_eager")
        for batch in range(2, 20):  # more than dynamo compiles graphs for
            call(torch.randn(batch, 3))
        w.step()
        assert len(w.latest) == 5
        assert sum(w.latest.observed) == 18
        assert "[whole]" in names(w.latest, "output", "")
        assert_adds_up(w)


def test_a_parameter_of_a_new_width(hooks_in: str) -> None:
    embedding = nn.Embedding(5, 2)
    optimizer = torch.optim.SGD(embedding.parameters())
    with watch(embedding, optimizer, kinds=("param", "param_grad")) as w:
        for rows in (5, 5, 7, 7):
            if rows != embedding.num_embeddings:  # as resize_token_embeddings does
                embedding.weight.data = torch.randn(rows, 2)
                embedding.weight.grad = None
                embedding.num_embeddings = rows
            embedding(torch.arange(rows)).sum().backward()
            optimizer.step()
        assert set(w.latest) == {("weight[7ch]", "param"), ("weight[7ch]", "param_grad")}
        assert [row.observed for row in w.coverage()] == [2, 2, 2, 2]
        assert_adds_up(w)
