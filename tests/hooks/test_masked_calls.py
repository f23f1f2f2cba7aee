"""Masks of a watched model: padding is left out of values and gradients in every path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.masked import assert_stats, bert, gpt2, kept
from support.modules import Lambda, take_step
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from hookstats.records.reasons import MASK_UNFIT
from hookstats.runs.run import open_run
from hookstats.watching.watch import watch

BATCH, TIME, WIDTH = 4, 12, 10
Seen = dict[tuple[str, str], Tensor]


def mask_of(*lengths: int, time: int = TIME) -> Tensor:
    """int64 [batch, time]: sequences of these lengths, padded on the right."""
    return (torch.arange(time)[None] < torch.tensor(lengths)[:, None]).long()


MASK = mask_of(12, 5, 1, 7)
OTHER = mask_of(3, 12, 9, 2).flip(1)


class Model(nn.Module):
    """Tensors that a mask fits and others that it does not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(WIDTH, WIDTH)
        self.flat = nn.Linear(WIDTH, 6)
        self.scores = Lambda(lambda x: x @ x.transpose(1, 2) / 9)
        self.heads = Lambda(lambda x: x.view(BATCH, TIME, 2, 3).transpose(1, 2))
        self.pooled = nn.Linear(6, 3)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        wide = self.wide(x).tanh()
        scores = self.scores(wide).softmax(-1)
        flat = self.flat((scores @ wide).flatten(0, 1))
        heads = self.heads(flat).square().mean((1, 2, 3))
        pooled: Tensor = self.pooled(flat.view(BATCH, TIME, 6)[:, 0])
        return pooled.sum(1) + heads


FIT = ("wide", "flat", "scores")
UNFIT = ("heads", "pooled")


def seen_by(model: nn.Module, names: tuple[str, ...]) -> Seen:
    """What the modules will return, and the gradients of that, by plain hooks of torch."""
    seen: Seen = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            seen[name, "output"] = output.detach().clone()
            output.register_hook(
                lambda gradient: seen.__setitem__((name, "grad_output"), gradient.clone())
            )

        return hook

    for name in names:
        model.get_submodule(name).register_forward_hook(keep(name))
    return seen


def assert_masked(w: Any, seen: Seen, mask: Tensor) -> None:
    for (name, kind), x in seen.items():
        got = w.latest[name, kind]
        if name in FIT:
            rows = kept(x, mask)
            assert_stats(got, rows, rows.dim() - 1)
        else:
            assert_stats(got, x, 1 if x.dim() == 4 else x.dim() - 1)


@pytest.mark.usefixtures("hooks_in")
def test_an_argument_masks_the_calls_and_their_gradients() -> None:
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    seen = seen_by(model, (*FIT, *UNFIT))
    with watch(model, optimizer, mask="padding", rules=()) as w:
        for mask in (MASK, OTHER, MASK, torch.ones_like(MASK), OTHER):
            optimizer.zero_grad()
            x = torch.randn(BATCH, TIME, WIDTH)
            model(x, padding=mask).sum().backward()
            optimizer.step()
            assert_masked(w, seen, mask)
            assert_stats(w.latest["", "input"], kept(x, mask), 1)
            weight = w.latest["wide.weight", "param_grad"]
            assert int(weight.count.sum()) == WIDTH * WIDTH
        coverage = w.coverage()
        for kind in ("output", "grad_output"):
            for name in FIT:
                assert coverage[name, kind].unmasked == {}
            for name in UNFIT:
                row = coverage[name, kind]
                assert row.observed == 5
                assert row.unmasked == {MASK_UNFIT: 5}
        assert f"all rows, {MASK_UNFIT}: 20 calls of output of heads" in str(coverage)


@pytest.mark.usefixtures("hooks_in")
def test_each_call_has_its_own_mask_wherever_the_backward_runs() -> None:
    model = Model()
    seen = seen_by(model, FIT)
    with watch(model, mask="padding", rules=()) as w:
        x = [torch.randn(BATCH, TIME, WIDTH) for _ in range(2)]
        masks = [MASK.clone(), OTHER.clone()]
        losses, outputs = [], []
        for one, mask in zip(x, masks, strict=True):
            losses.append(model(one, mask).sum())
            outputs.append(seen["wide", "output"])
            mask.zero_()  # what was given may change
        gradients = []
        for loss in reversed(losses):
            loss.backward()
            gradients.insert(0, seen["wide", "grad_output"])
        w.step()
        for kind, found in (("output", outputs), ("grad_output", gradients)):
            rows = [kept(y, mask) for y, mask in zip(found, (MASK, OTHER), strict=True)]
            assert_stats(w.latest["wide", kind], torch.cat(rows), 1)


@pytest.mark.usefixtures("hooks_in")
def test_contexts_mask_what_is_called_in_them() -> None:
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    with watch(model, rules=()) as w:

        def count(*contexts: Any) -> int:
            for context in contexts:
                context.__enter__()
            model.wide(x)
            for context in reversed(contexts):
                context.__exit__(None, None, None)
            w.step()
            return int(w.latest["wide", "output"].count[0])

        assert count() == BATCH * TIME
        assert count(w.mask(MASK)) == MASK.sum()
        assert count(w.mask(MASK), w.mask(OTHER)) == OTHER.sum()
        again = w.mask(MASK.bool())
        assert count(again, again) == MASK.sum()
        assert count(w.mask(MASK.flatten())) == BATCH * TIME  # a mask [rows] is for [rows, ...]
        assert count(w.mask(torch.zeros(BATCH, TIME, dtype=torch.bool))) == 0
        assert count() == BATCH * TIME
        with pytest.raises(ZeroDivisionError), w.mask(MASK):
            raise ZeroDivisionError
        assert count() == BATCH * TIME
        with w.mask(MASK):
            with w.mask(OTHER):
                pass
            assert count() == MASK.sum()
    with pytest.raises(ValueError, match="closed"):
        w.mask(MASK)


@pytest.mark.usefixtures("hooks_in")
def test_masks_end_with_their_calls_however_they_end() -> None:
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    with watch(model, mask="padding", rules=()) as w:
        with pytest.raises(RuntimeError):
            model(torch.randn(BATCH, TIME, WIDTH + 1), MASK)
        model.wide(x)
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == BATCH * TIME
        model(x, MASK)
        w.step()
        model(x)
        model(x, None)
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == 2 * BATCH * TIME
        assert w.coverage()["wide", "output"].unmasked == {}
        with w.mask(OTHER):
            model(x)
            model(x, MASK)
            model.wide(x)
        w.step()
        expected = 2 * int(OTHER.sum()) + int(MASK.sum())
        assert int(w.latest["wide", "output"].count[0]) == expected


@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    class Checkpointed(Model):
        def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
            found: Tensor = checkpoint(super().forward, x, use_reentrant=reentrant)
            return found

    model = Checkpointed()
    seen = seen_by(model, () if reentrant else FIT)
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, mask="padding", rules=()) as w:
        for mask in (MASK, OTHER):
            optimizer.zero_grad()
            x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
            model(x, mask).sum().backward()
            optimizer.step()
            assert int(w.latest["wide", "output"].count[0]) == mask.sum()
            assert_masked(w, seen, mask)


@pytest.mark.usefixtures("hooks_in")
def test_an_argument_that_is_no_mask_is_said_once() -> None:
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    with watch(model, mask="padding", rules=()) as w:
        with pytest.warns(RuntimeWarning, match=r"mask = 'padding'.*dtype torch.float32"):
            model(x, MASK.float())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(x, torch.ones(BATCH, 1, TIME, TIME, dtype=torch.bool))
            model(x, "text")
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == 3 * BATCH * TIME
        assert w.coverage()["wide", "output"].unmasked == {MASK_UNFIT: 3}


def test_traces_and_transforms_see_no_mask() -> None:
    """Their calls are left out, and so are the operations that would copy the mask."""
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    plain = count_of_nodes(model, x)
    with watch(model, mask="padding", rules=()) as w:
        assert count_of_nodes(model, x) == plain
        torch.func.grad(lambda one: model(one, MASK).sum())(x)
        assert w.coverage()["wide", "output"].observed == 0
        model(x, MASK)
        w.step()
        assert int(w.latest["wide", "output"].count[0]) == MASK.sum()


def count_of_nodes(model: nn.Module, x: Tensor) -> int:
    """In a trace of the model, which warns of itself alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced: Any = torch.jit.trace(model, (x, MASK), check_trace=False)
    return len(list(traced.inlined_graph.nodes()))


def test_steps_that_are_not_recorded_have_no_masks() -> None:
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    with watch(model, mask="padding", every=2, rules=()) as w:
        for _ in range(3):
            model(x, MASK).sum().backward()
            w.step()
        assert int(w.latest["wide", "output"].count[0]) == MASK.sum()
        assert w.coverage()["wide", "output"].forwards == 2


def test_bad_masks_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"mask = 'pading'.*Model.forward.*did you mean 'padding'"):
        watch(Model(), mask="pading")
    with pytest.raises(ValueError, match=r"expected the name of an argument.*watch.mask"):
        watch(Model(), mask=MASK)  # type: ignore[arg-type]
    with watch(Model()) as w:
        for bad, match in (
            ([1], "mask = list: expected a tensor"),
            (torch.ones(3), "mask has dtype torch.float32"),
            (torch.ones(3, 1, 3, dtype=torch.bool), r"mask has shape \(3, 1, 3\)"),
            (torch.ones(3, 3, dtype=torch.bool).to_sparse(), "mask has layout"),
        ):
            with pytest.raises(ValueError, match=match):
                w.mask(bad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hooks_in")
def test_a_mask_on_another_device_fits_no_tensor() -> None:
    model = Model()
    x = torch.randn(BATCH, TIME, WIDTH)
    with watch(model, kinds=("output", "grad_output"), rules=()) as w:
        with w.mask(MASK.to("meta")):
            model(x).sum().backward()
        w.step()
        for kind in ("output", "grad_output"):
            assert int(w.latest["wide", kind].count[0]) == BATCH * TIME
            assert w.coverage()["wide", kind].unmasked == {MASK_UNFIT: 1}


def test_where_the_argument_is() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any, **options: Any) -> Any:
            return self.module(*inputs, **options)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: Tensor, *, padding: Tensor) -> Any:
            return self.inner(x)

    x = torch.randn(BATCH, TIME, WIDTH)
    for model, args, kwargs in (
        (Wrapper(Model()), (x, MASK), {}),
        (Wrapper(Model()), (x,), {"padding": MASK}),
        (Named(), (x,), {"padding": MASK}),
    ):
        with watch(model, mask="padding", rules=()) as w:
            model(*args, **kwargs)
            w.step()
            (name,) = [key for key in w.latest if key[0].endswith("wide") and key[1] == "output"]
            assert int(w.latest[name].count[0]) == MASK.sum()


def test_runs_say_which_argument_was_the_mask(tmp_path: Path) -> None:
    model = Model()
    out = tmp_path / "run"
    with watch(model, mask="padding", rules=(), out=out) as w:
        model(torch.randn(BATCH, TIME, WIDTH), MASK)
        w.step()
    run = open_run(out)
    assert run.header["mask"] == "padding"
    assert int(run[0]["wide", "output"].count[0]) == MASK.sum()
    assert run.coverage is not None
    rows = {(row["name"], row["kind"]): row for row in run.coverage["rows"]}
    assert rows["pooled", "output"]["unmasked"] == {MASK_UNFIT: 1}
    with pytest.raises(ValueError, match="mask"):
        watch(model, rules=(), out=out, append=True)


@pytest.mark.check
@pytest.mark.usefixtures("hooks_in")
@pytest.mark.parametrize("make", [gpt2, bert])
def test_padded_batches_of_transformers(make: Callable[[], nn.Module]) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = make().train()
    names = tuple(
        name
        for name, module in model.named_modules()
        if not list(module.children()) and type(module).__name__ != "Identity"
    )
    seen = seen_by(model, names)
    ids = torch.randint(50, (BATCH, TIME))
    labels = ids if make is gpt2 else torch.randint(2, (BATCH,))
    optimizer = SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, mask="attention_mask", rules=()) as w:
        for mask in (MASK, OTHER):
            take_step(optimizer, model(input_ids=ids, attention_mask=mask, labels=labels).loss)
            fit = 0
            assert len(seen) > 30
            for (name, kind), x in seen.items():
                if x.shape[:2] == (BATCH, TIME):
                    assert_stats(w.latest[name, kind], kept(x, mask), 1)
                    fit += 1
                else:
                    assert_stats(w.latest[name, kind], x, 1 if x.dim() == 4 else x.dim() - 1)
                    assert w.coverage()[name, kind].unmasked[MASK_UNFIT] > 0
            assert fit > 20
            tokens = w.latest["", "input.input_ids"]
            assert int(tokens.count) == mask.sum()
            assert float(tokens.mean) == pytest.approx(float(ids[mask.bool()].double().mean()))
        weights = [row for row in w.coverage() if row.kind == "param_grad"]
        assert weights
        assert not any(row.unmasked for row in weights)
