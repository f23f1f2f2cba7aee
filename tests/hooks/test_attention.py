"""The kind "attention": what heads do, against the whole attention in fp64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.modules import take_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookstats as hs
from hookstats.hooks.attention import QUERIES, Heads


def oracle(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Heads:
    """Of all queries, in fp64, with the softmax of torch."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.double() @ key.mT * scale
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = scores.softmax(-1)
    return Heads(torch.special.entr(weights).sum(-1), scores.amax(-1), weights[..., 0])


def masks(batch: int, queries: int, keys: int) -> list[Tensor | None]:
    kept = torch.rand(batch, 1, queries, keys) < 0.7
    kept[..., 0] = True
    padded = kept[:, :, :1].clone()
    padded[-1] = False
    return [None, kept, kept[0, 0], torch.randn(queries, keys), padded]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(3, 150, 130), (5, 12, 12), (2, 1, 7)])
def test_it_is_that_of_the_whole_attention(
    dtype: torch.dtype, batch: int, queries: int, keys: int
) -> None:
    torch.manual_seed(0)
    query = 3 * torch.randn(batch, 4, queries, 8, dtype=dtype)
    key = torch.randn(batch, 2, keys, 8, dtype=dtype)
    stride = max(1, queries // QUERIES)
    several = min(batch, max(1, QUERIES // queries))
    for number, mask in enumerate(masks(batch, queries, keys)):
        causal, scale = (mask is None, None) if number % 2 else (False, 0.3)
        whole = oracle(query, key, mask, causal, scale)
        for seed in (0, 1, 257, 0xFFFFFFFF):
            first, start = seed % (batch - several + 1), seed // 256 % stride
            found = hs.attention(query, key, mask, is_causal=causal, scale=scale, seed=seed)
            for values, every in zip(found, whole, strict=True):
                expected = every[first : first + several, :, start::stride][:, :, :QUERIES]
                torch.testing.assert_close(
                    values.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True
                )


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"query, key = \[2, 3, 4\], \[2, 3, 4\]: expected 4"):
        hs.attention(torch.ones(2, 3, 4), torch.ones(2, 3, 4))


class Mixer(nn.Module):
    """Attention with two heads, by the function that `attend` has."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        self.seen = q.detach(), k.detach()
        mixed: Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + mixed.transpose(1, 2).flatten(2)


class Blocks(nn.Module):
    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.first, self.last = Mixer(), Mixer()
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        first = self.first
        x = checkpoint(first, x, use_reentrant=False) if self.recomputes else first(x)
        out: Tensor = self.last(x)
        return out


KINDS = ("output", "attention")


def training(recomputes: bool = False) -> tuple[Blocks, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Blocks(recomputes)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    take_step(optimizer, model(torch.randn(5, 7, 6)).square().mean())


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_watch_has_it_by_the_module_that_attends(recomputes: bool) -> None:
    model, optimizer = training(recomputes)
    own = F.scaled_dot_product_attention
    with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
        step(model, optimizer)
        record = w.latest
        row = w.coverage()["first", "attention.entropy"]
    assert F.scaled_dot_product_attention is own
    assert (row.forwards, row.observed) == (1, 1)
    for name in ("first", "last"):
        query, key = getattr(model, name).seen
        whole = oracle(query, key, None, True, None)
        for path, values in whole._asdict().items():
            stats = record[name, f"attention.{path}"]
            assert stats.count.tolist() == [5 * 7] * 2
            torch.testing.assert_close(stats.mean, values.mean((0, 2)), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(stats.max, values.amax((0, 2)), rtol=1e-5, atol=1e-6)


def test_phases_and_selections_hold_and_evaluations_are_left_out() -> None:
    model, optimizer = training()
    with hs.watch(model, optimizer, kinds=KINDS, every=1, exclude="last") as w:
        with w.phase("fake"):
            model(torch.randn(5, 7, 6))
        model.eval()
        with torch.no_grad():
            model(torch.randn(1, 9, 6))
        model.train()
        step(model, optimizer)
        record = w.latest
    assert record["first", "attention"].count.tolist() == [5 * 7] * 2
    assert record["first", "fake:attention"].count.tolist() == [5 * 7] * 2
    assert not any(name == "last" for name, _ in record)


def test_queries_without_a_key_are_no_alert() -> None:
    model = nn.MultiheadAttention(6, 2, batch_first=True)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[:, 3:] = True
    early = torch.ones(5, 5, dtype=torch.bool).triu()  # no key before the first query
    with hs.watch(model, kinds=KINDS, every=1) as w:
        x = torch.randn(4, 5, 6)
        model(x, x, x, key_padding_mask=padding, attn_mask=early, need_weights=False)
        w.step()
        stats = w.latest["", "attention.entropy"]
        assert stats.nan.tolist() == [4, 4]
        assert stats.count.tolist() == [16, 16]
        assert not [alert for alert in w.alerts if alert.kind.startswith("attention")]


def test_others_that_wrap_the_function_stay() -> None:
    model, optimizer = training()
    own = F.scaled_dot_product_attention
    try:
        first = hs.watch(model, optimizer, kinds=KINDS, every=1)
        ours = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = theirs = lambda *args, **kwargs: ours(*args, **kwargs)
        first.close()
        assert F.scaled_dot_product_attention is theirs
        with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
            step(model, optimizer)
            assert w.latest["first", "attention"].count.tolist() == [5 * 7] * 2
        F.scaled_dot_product_attention = ours
        hs.watch(model, kinds=KINDS).close()
        assert F.scaled_dot_product_attention is own
    finally:
        F.scaled_dot_product_attention = own


def test_scripted_code_calls_the_operator() -> None:
    def scripted(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 2, 3, 4)
    with hs.watch(Blocks(), kinds=KINDS):
        assert torch.equal(torch.jit.script(scripted)(x), F.scaled_dot_product_attention(x, x, x))


@pytest.mark.check
def test_compiled_code_is_left_out_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = training()
    with hs.watch(model, optimizer, kinds=KINDS, every=1) as w:
        step(torch.compile(model, fullgraph=True, backend="eager"), optimizer)
        assert ("first", "attention") not in w.latest
        assert "attention is not seen: compiled code calls it" in str(w.coverage())
    assert capfd.readouterr().err.count("the attention of compiled code is not recorded") == 1
