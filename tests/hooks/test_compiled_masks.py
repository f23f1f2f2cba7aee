"""Masks of compiled models: the statistics are those of the same calls in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from support.compiled import MARKS, needs_gradients
from support.masked import bert, gpt2
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from hookstats.records.reasons import MASK_UNFIT
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

pytestmark = [*MARKS, needs_gradients]

KINDS = ("input", "output", "grad_output")
BACKENDS = ("eager", "aot_eager", "inductor")
WIDTH = 6


def padding(batch: int, time: int, seed: int = 0) -> Tensor:
    """int64 [batch, time]: some rows are 0."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(batch, time, generator=generator) < 0.6).long()


class Model(nn.Module):
    """Tensors that a mask fits, as they are or flat, and one that it does not fit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(WIDTH, WIDTH)
        self.flat = nn.Linear(WIDTH, 4)
        self.pooled = nn.Linear(4, 3)

    def forward(self, x: Tensor, padding: Any = None) -> Tensor:
        flat = self.flat(self.wide(x).tanh().flatten(0, 1)).tanh()
        pooled: Tensor = self.pooled(flat.view(*x.shape[:2], 4)[:, 0])
        return pooled.sum(1)


def assert_same(got: Watch, expected: Watch) -> None:
    """The last step and the coverage of masks: integers to the bit, moments to 1e-6."""
    mine, theirs = got.latest, expected.latest
    assert mine is not None
    assert theirs is not None
    assert sorted(mine.keys()) == sorted(theirs.keys())
    for key in theirs:
        a, b = mine[key], theirs[key]
        assert torch.equal(a.tallies, b.tallies), key
        scale = float(b.rms.nan_to_num().max())
        torch.testing.assert_close(
            a.mean, b.mean, rtol=1e-6, atol=1e-6 * scale, equal_nan=True, msg=str(key)
        )
        torch.testing.assert_close(
            a.rms, b.rms, rtol=1e-6, atol=1e-6 * scale, equal_nan=True, msg=str(key)
        )
    for row in expected.coverage():
        assert got.coverage()[row.name, row.kind].unmasked == row.unmasked


@pytest.mark.check
@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize(
    ("backend", "around"),
    [
        ("aot_eager", False),
        *(pytest.param(*each, marks=pytest.mark.check) for each in product(BACKENDS, (True,))),
        *(pytest.param(b, False, marks=pytest.mark.check) for b in ("eager", "inductor")),
    ],
)
def test_an_argument_masks_compiled_calls_and_their_gradients(backend: str, around: bool) -> None:
    """around: the model is called by what is compiled."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    model, plain = Model(), Model()
    settings: dict[str, Any] = {"mask": "padding", "kinds": KINDS, "rules": ()}
    with watch(model, **settings) as w, watch(plain, **settings) as expected:
        whole = (lambda *given: model(*given)) if around else model
        call: Any = torch.compile(whole, backend=counter, fullgraph=True)
        shapes = [(4, 12)] * 3 + [(31, 33), (2, 7), (5, 1)]
        for i, shape in enumerate(shapes):
            x = torch.randn(*shape, WIDTH)
            mask = None if i == 1 else padding(*shape, seed=i)
            given = None if mask is None else mask.clone()
            loss = call(x, given).sum()
            if given is not None:
                given.fill_(1)  # the backward has the mask of its call
            loss.backward()
            plain(x, mask).sum().backward()
            w.step()
            expected.step()
            assert_same(w, expected)
        # One step has no mask, and in the last one [5, 1] fits [5, 3], as rows.
        assert w.coverage()["pooled", "output"].unmasked == {MASK_UNFIT: len(shapes) - 2}
    # With a mask, without, with sizes of the mask and then of the input that vary, and for one time
    # step alone.
    assert counter.frame_count <= 5


@pytest.mark.check
@pytest.mark.usefixtures("hooks_in")
def test_masks_from_outside_of_a_graph() -> None:
    """Those of contexts, and of a model of which a part is compiled."""
    torch._dynamo.reset()
    model, plain = Model(), Model()
    settings: dict[str, Any] = {"mask": "padding", "kinds": KINDS, "rules": ()}
    with watch(model, **settings) as w, watch(plain, **settings) as expected:
        model.wide.compile(backend="aot_eager", fullgraph=True)
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
        x = torch.randn(4, 12, WIDTH)
        outer, inner = padding(4, 12, 1), padding(4, 12, 2)
        for context, mask in ((None, inner), (outer, inner), (outer, None), (None, None)):
            for compiled in (model, call):
                for one, run in ((w, compiled), (expected, plain)):
                    with nullcontext() if context is None else one.mask(context):
                        run(x, mask).sum().backward()
                    one.step()
                assert_same(w, expected)


@pytest.mark.parametrize("nested", [False, pytest.param(True, marks=pytest.mark.check)])
def test_a_graph_that_breaks_has_its_mask_in_all_its_parts(nested: bool) -> None:
    """With nested breaks, a call of the model is in several graphs; otherwise it is not compiled,
    but for its parts."""

    class Broken(Model):
        def forward(self, x: Tensor, padding: Any = None) -> Tensor:
            x = self.wide(x)
            torch._dynamo.graph_break()
            if x.shape[0] == 3:
                raise ZeroDivisionError
            return super().forward(x)

    if nested and not hasattr(torch._dynamo.config, "nested_graph_breaks"):
        pytest.skip("this torch has no nested graph breaks")
    torch._dynamo.reset()
    model, plain = Broken(), Broken()
    settings: dict[str, Any] = {"mask": "padding", "kinds": KINDS, "rules": ()}
    said = pytest.warns(RuntimeWarning, match="graph of compiled code breaks") if nested else None
    with ExitStack() as contexts:
        if nested:
            contexts.enter_context(torch._dynamo.config.patch(nested_graph_breaks=True))
        w = contexts.enter_context(watch(model, **settings))
        expected = contexts.enter_context(watch(plain, **settings))
        call = torch.compile(lambda *given: model(*given), backend="aot_eager")
        x = torch.randn(4, 12, WIDTH)
        with said or nullcontext():
            call(x, padding(4, 12)).sum().backward()
        plain(x, padding(4, 12)).sum().backward()
        w.step()
        expected.step()
        assert_same(w, expected)
        with pytest.raises(ZeroDivisionError):
            call(x[:3], padding(3, 12))
        w.step()
        model.wide(x)
        w.step()
        assert w.latest is not None
        assert int(w.latest["wide", "output"].count[0]) == 4 * 12


def test_a_compiled_argument_that_is_no_mask_is_said_once() -> None:
    torch._dynamo.reset()
    model = Model()
    with watch(model, mask="padding", kinds=KINDS, rules=()) as w:
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
        x = torch.randn(4, 12, WIDTH)
        with pytest.warns(RuntimeWarning, match=r"mask = 'padding'.*dtype torch.float32"):
            call(x, padding(4, 12).float()).sum().backward()
        w.step()
        assert w.latest is not None
        for kind in ("output", "grad_output"):
            assert int(w.latest["wide", kind].count[0]) == 4 * 12
            assert w.coverage()["wide", kind].unmasked == {MASK_UNFIT: 1}


@pytest.mark.check
@pytest.mark.parametrize("make", [gpt2, bert])
def test_padded_batches_of_compiled_transformers(make: Callable[[], nn.Module]) -> None:
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, plain = make().train(), make().train()
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(50, (4, 12))
    labels = ids if make is gpt2 else torch.randint(2, (4,))
    settings: dict[str, Any] = {"mask": "attention_mask", "kinds": KINDS, "rules": ()}
    with watch(model, **settings) as w, watch(plain, **settings) as expected:
        call = torch.compile(model, backend="aot_eager")
        for lengths in ((12, 5, 1, 7), (3, 12, 9, 2)):
            mask = (torch.arange(12)[None] < torch.tensor(lengths)[:, None]).long()
            for one, run in ((w, call), (expected, plain)):
                run(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
                one.step()
            assert_same(w, expected)
