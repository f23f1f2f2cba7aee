"""watch(per_call=True): the calls of a module in a step have sites of their own."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from support.compiled import MARKS, needs_gradients
from support.expected import assert_adds_up, assert_stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.watching.watch import watch

HOOKED = ("input", "grad_input", "output", "grad_output")

pytestmark = MARKS


class Twice(nn.Module):
    """One Tanh after each of two layers."""

    def __init__(self, widths: tuple[int, int] = (4, 4)) -> None:
        super().__init__()
        self.first = nn.Linear(3, widths[0])
        self.second = nn.Linear(widths[0], widths[1])
        self.act = nn.Tanh()
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        a = self.act(self.first(x))
        b = self.act(self.second(a))
        if not torch.compiler.is_compiling():
            self.outputs = [a, b]
        return b.sum()


def test_each_call_has_its_sites(hooks_in: str) -> None:
    model = Twice()
    with watch(model, kinds=HOOKED, include="act", per_call=True) as w:
        for _ in range(3):
            model(torch.randn(5, 3)).backward()
            w.step()
        record = w.latest
        assert {name for name, _ in record} == {"act@0", "act@1"}
        for i, out in enumerate(model.outputs):
            assert_stats(record[f"act@{i}", "output"], [out], -1)
        assert_stats(record["act@1", "grad_output"], [torch.ones(5, 4)], -1)
        for row in w.coverage():
            assert (row.forwards, row.observed) == (3, 3)
        assert len(w.coverage()) == 8
        assert_adds_up(w)


def test_numbers_go_on_over_the_micro_batches_of_a_step(hooks_in: str) -> None:
    model = Twice((4, 6))
    with watch(model, kinds=("output",), include="act", per_call=True) as w:
        for _ in range(2):
            model(torch.randn(5, 3))
        w.step()
        assert list(w.latest) == [(f"act@{i}", "output") for i in range(4)]
        assert [site.channels for site in w.latest.sites] == [4, 6, 4, 6]
        model.act(torch.ones(2, 7))
        w.step()
        assert list(w.latest) == [("act@0[7ch]", "output")]


def test_further_calls_are_merged(hooks_in: str) -> None:
    act = nn.Tanh()
    with watch(act, kinds=("output",), per_call=True) as w:
        for _ in range(67):
            act(torch.ones(2, 3))
        w.step()
        assert list(w.latest) == [(f"@{i}", "output") for i in (*range(64), "...")]
        assert w.latest.observed.tolist() == [1] * 64 + [3]


def test_recomputations_are_not_numbered(hooks_in: str) -> None:
    model = Twice()
    with watch(model, kinds=("output",), include="act", per_call=True) as w:
        checkpoint(model, torch.randn(5, 3, requires_grad=True), use_reentrant=False).backward()
        w.step()
        assert set(w.latest) == {("act@0", "output"), ("act@1", "output")}
        # The checkpoint stops as soon as it has what the backward needs.
        assert [row.skipped for row in w.coverage()] == [{"recomputation": 1}, {}]


@needs_gradients
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_compiled_code_the_calls_in_a_graph_are_numbered(backend: str) -> None:
    model = Twice()
    with watch(model, kinds=("output", "grad_output"), include="act", per_call=True) as w:
        call = torch.compile(model, fullgraph=True, backend=backend)
        x = torch.randn(5, 3)
        for _ in range(2):
            call(x).backward()
            w.step()
        record = w.latest
        model(x)
        for i, out in enumerate(model.outputs):
            assert_stats(record[f"act@{i}", "output"], [out], -1)
        assert_stats(record["act@1", "grad_output"], [torch.ones(5, 4)], -1)
        assert_adds_up(w)


def test_a_dropped_watch_is_collected(hooks_in: str) -> None:
    model = Twice()
    w = weakref.ref(watch(model, kinds=("output",), per_call=True))
    model(torch.randn(5, 3))
    gc.collect()
    assert w() is None
    assert not model.act._forward_hooks


def test_a_run_is_continued_as_it_was_begun(tmp_path: Path) -> None:
    watch(nn.Tanh(), kinds=("output",), out=tmp_path, per_call=True).close()
    with pytest.raises(ValueError, match="has per_call = True: expected None, as in this run"):
        watch(nn.Tanh(), kinds=("output",), out=tmp_path, append=True)
    watch(nn.Tanh(), kinds=("output",), out=tmp_path, append=True, per_call=True).close()


def test_a_bad_argument() -> None:
    with pytest.raises(ValueError, match="per_call = 1: expected True or False"):
        watch(nn.Tanh(), per_call=1)  # type: ignore[arg-type]
