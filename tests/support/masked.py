"""Masked tensors in many layouts, and what their states must be, by NumPy on the kept rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from support.oracle import DTYPES, State, accumulate, check_channel, rows, slot_counts
from support.sampled import mask_of
from support.values import LINEAR, LOG, of_dtype
from torch import Tensor, nn

from hookstats.kernels import ops
from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.bins import Bins, LogBins
from hookstats.stats.channel_stats import ChannelStats

BINS = LogBins()
Case = tuple[Tensor, int | None]


def masks(batch: int, time: int) -> dict[str, Tensor]:
    """bool [batch, time]: padding on either side, none, all, and without any order."""
    lengths = torch.arange(batch) * 7 % (time + 1)
    right = torch.arange(time)[None] < lengths[:, None]
    generator = torch.Generator().manual_seed(batch * time)
    return {
        "right": right,
        "left": right.flip(1),
        "all": torch.ones(batch, time, dtype=torch.bool),
        "none": torch.zeros(batch, time, dtype=torch.bool),
        "every other": (torch.arange(batch * time) % 2 == 0).view(batch, time),
        "random": torch.rand(batch, time, generator=generator) < 0.6,
        "last": (torch.arange(batch * time) == batch * time - 1).view(batch, time),
    }


def layouts(values: Tensor) -> Iterator[Case]:
    """`values` [batch, time, channels], with the dimension of the channels, in many layouts."""
    batch, time, channels = values.shape
    gaps = torch.zeros(batch, time + 3, 2 * channels, dtype=values.dtype)[:, 2:-1, ::2]
    gaps.copy_(values)
    heads = values.reshape(batch, time, -1, 3 if channels % 3 == 0 else 1)
    yield values, 2
    yield values, -1
    yield values, None
    yield values.reshape(-1, channels), 1
    yield values.reshape(-1, channels), None
    yield values[:, :, 0].contiguous(), None
    yield values[:, :, 0], None
    yield values.reshape(-1)[: batch * time], None
    yield values.transpose(1, 2).contiguous().transpose(1, 2), 2
    yield values.transpose(0, 1).contiguous().transpose(0, 1), 2
    yield values.transpose(0, 1).contiguous().transpose(0, 1), None
    yield gaps, 2
    yield gaps, None
    yield heads, 2
    yield heads, 3
    yield heads, None
    yield heads.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), 3
    yield heads.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3), 2
    aside = heads.transpose(2, 3).contiguous().transpose(2, 3)  # out of logical order
    yield aside, 2
    yield aside, None


def expanded(values: Tensor) -> Iterator[Case]:
    """Tensors of which some dimensions are repeated."""
    batch, time, channels = values.shape
    yield values[:, :1].expand(-1, time, -1), 2
    yield values[:1].expand(batch, -1, -1), 2
    yield values[:, :, :1].expand(-1, -1, channels), 2
    yield values[:, :, :1].expand(-1, -1, channels), None
    yield values[:1, :1].expand(batch, time, -1), 2
    yield values[:, :, :1, None].expand(-1, -1, 3, channels), 2


def check_masked(
    got: State,
    x: Tensor,
    channel_dim: int | None,
    mask: Tensor,
    bins: Bins | None = None,
    channel_bins: Bins | None = None,
    how: Tensor | None = None,
) -> None:
    """Assert that `got` is the state of the rows of `x` that the mask keeps."""
    kept = (mask != 0).reshape(-1).numpy()
    values = rows(x, channel_dim)

    def of_rows(array: NDArray[np.float64]) -> NDArray[np.float64]:
        return array.reshape(len(array), len(kept), -1)[:, kept].reshape(len(array), -1)

    channels = of_rows(values)
    where = f"{tuple(x.shape)} {x.stride()} {x.dtype}, channels {channel_dim}"
    for each, moments, tallies in zip(
        channels, got.moments.numpy(), got.tallies.numpy(), strict=True
    ):
        check_channel(moments, tallies, each, where)
    every = [1, 1] if how is None else how.tolist()[1:]
    step = 0 if how is None else int(how[0])
    dims = mask.dim() if x.shape[: mask.dim()] == mask.shape else 1
    counted = [
        of_rows(rows(mask_of(x, channel_dim, k, step, dims), channel_dim)) > 0
        if k != 1
        else np.ones(channels.shape, bool)
        for k in every
    ]
    if bins is not None:
        assert got.counts is not None
        expected = slot_counts(channels[counted[0]], bins)
        np.testing.assert_array_equal(got.counts.numpy(), expected, where)
    if channel_bins is not None:
        assert got.channel_counts is not None
        for counts, each, some in zip(
            got.channel_counts.numpy(), channels, counted[1], strict=True
        ):
            np.testing.assert_array_equal(counts, slot_counts(each[some], channel_bins), where)


def digest_of_masked() -> str:
    """The integers that the operator finds in masked tensors of every dtype and layout."""
    found = hashlib.sha256()
    for dtype in DTYPES:
        for values in (of_dtype(dtype, 3, 5, 33), of_dtype(dtype, 2, 40, 6)):
            for mask in masks(*values.shape[:2]).values():
                for x, channel_dim in layouts(values):
                    got = accumulate(ops.update_, x, channel_dim, LINEAR, LOG, mask=mask)
                    for integers in got[1:]:
                        assert integers is not None
                        found.update(integers.numpy().tobytes())
    return found.hexdigest()


def assert_stats(got: ChannelStats, x: Tensor, channel_dim: int | None) -> None:
    """`got` are the statistics of `x`: integers to the bit, moments to 1e-6."""
    expected = channel_stats(x, channel_dim, BINS)
    assert torch.equal(got.tallies, expected.tallies)
    whole = channel_stats(x, None, BINS).hist
    assert got.tensor_hist is not None
    assert whole is not None
    assert torch.equal(got.tensor_hist.slot_counts, whole.slot_counts)
    assert torch.equal(got.min, expected.min)
    assert torch.equal(got.max, expected.max)
    scale = float(expected.rms.nan_to_num().max())
    np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(got.var, expected.var, rtol=2e-6, atol=1e-9 * scale**2)


def kept(x: Tensor, mask: Tensor) -> Tensor:
    """The rows of `x` that the mask keeps, [rows, ...]."""
    return x[mask.bool()] if x.shape[:2] == mask.shape else x[mask.bool().flatten()]


def gpt2() -> nn.Module:
    """Two layers for 12 tokens, without dropout."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=24, n_head=2, vocab_size=50, n_positions=12, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, max_position_embeddings=12, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)
