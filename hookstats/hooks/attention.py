"""Attention: how the heads of a model attend, by the queries and keys that they compare."""

from __future__ import annotations

import math
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats._torch import is_plain, mark_constant, script_as
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.readable import detour, own_dispatch, unreadable
from hookstats.hooks.sharding import Sharding
from hookstats.hooks.widths import Sites
from hookstats.records.keys import in_phase
from hookstats.stats.messages import say

ATTENTION = "attention"
"""The kind of what `attention` returns."""

QUERIES = 64
"""How many queries of each head are looked at in a call, about."""


class Heads(NamedTuple):
    """What `attention` says of each head and query, each [samples, heads, queries]."""

    entropy: Tensor
    """Of the weights, in nats: 0 where one key has all, log(keys) where all have the same. NaN
    where the mask leaves no key."""
    largest_logit: Tensor
    """The largest score before the softmax, after scale and mask; -inf where there is no key."""
    first_key: Tensor
    """The weight of the first key, where attention goes that goes nowhere ("attention sink")."""


def attention(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    seed: int = 0,
) -> Heads:
    """How heads attend, at about 64 queries: their entropy, largest logit, share of the first key.

        hs.observe("mixer", lambda: hs.attention(q, k, is_causal=True), channel_dim=1)

    The queries are at even distances, of one sample of the batch, or of several where these are
    short. Scores are computed again, in fp32 at least, from these queries and all keys; dropout is
    left out. Nothing waits for a device. The arguments are those of
    `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: [batch, heads, queries, size].
        key: [batch, heads, keys, size]; with fewer heads, each serves several queries' heads.
        mask: bool, True where a query may attend to a key, or summands of the scores; it broadcasts
            to [batch, heads, queries, keys].
        is_causal: whether query i attends only to keys 0 to i.
        scale: of the scores; by default 1 / sqrt(size).
        seed: chooses the sample, and the first of the queries.

    Raises:
        ValueError: query or key has another number of dimensions.
    """
    if not query.dim() == key.dim() == 4:
        raise ValueError(
            f"query, key = {list(query.shape)}, {list(key.shape)}: expected 4 dimensions"
        )
    batch, heads, length, size = query.shape
    several = min(batch, max(1, QUERIES // max(length, 1)))
    stride = max(1, length // QUERIES)
    first = seed % (batch - several + 1)
    start = seed // 256 % stride
    rows = slice(start, start + stride * QUERIES, stride)
    chosen = slice(first, first + several), slice(None), rows
    device = query.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        few = query[chosen].to(dtype) * (1 / math.sqrt(size) if scale is None else scale)
        keys = key[chosen[0]].to(dtype)
        shape = (several, heads, few.shape[2], keys.shape[2])
        scores = (few.reshape(several, keys.shape[1], -1, size) @ keys.mT).view(shape)
        if is_causal:
            place = torch.arange(shape[2], device=device)[:, None] * stride + start
            scores.masked_fill_(torch.arange(shape[3], device=device) > place, -math.inf)
        if mask is not None:
            part = mask.broadcast_to(batch, heads, length, shape[3])[chosen]
            is_bool = part.dtype is torch.bool
            scores = scores.masked_fill_(~part, -math.inf) if is_bool else scores + part
        largest = scores.amax(-1)
        # Far below the largest a weight is 0, and has no entropy; -inf times 0 would be NaN.
        below = scores.sub_(largest[..., None]).clamp_min_(-1e4)
        weights = below.exp()
        total = weights.sum(-1)
        entropy = total.log() - (weights * below).sum(-1) / total
        return Heads(entropy, largest, weights[..., 0] / total)


class Attention:
    """Feeds the sites of the kind "attention" of a watch's modules."""

    def __init__(self, buffers: DoubleBuffer, sharding: Sharding, phases: Sequence[str]) -> None:
        """phases: their names by their numbers."""
        self._buffers = buffers
        self._sharding = sharding
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._sites: dict[tuple[str, str], Sites] = {}
        self._phases = phases
        self.unseen: dict[str, str] = {}
        """What is not recorded, with the reason."""

    def attach(self, modules: Mapping[str, nn.Module]) -> RemovableHandle:
        """Record the attention of calls that these modules make."""
        self._modules = {id(m): (weakref.ref(m), name) for name, m in modules.items()}
        return _listen(self)

    def sites(self) -> list[Sites]:
        return list(self._sites.values())

    def observe(self, *args: Any, **kwargs: Any) -> None:
        """Record a call of `scaled_dot_product_attention` with these arguments, if it is due."""
        buffers = self._buffers
        if not buffers.is_observing() or detour() is not None:
            return
        with buffers.lock, buffers.guard, own_dispatch():
            name = self._caller()
            if name is None:
                return
            phase = self._phases[buffers.phase]
            sites = self._sites.get((name, phase))
            if sites is None:
                kind = in_phase(phase, ATTENTION)
                sites = Sites(buffers, name, kind, _heads, sharding=self._sharding)
                self._sites[name, phase] = sites
            try:
                _observe(sites, *args, **kwargs)
            except Exception as error:
                sites[".entropy"].first.disable(error)

    def _caller(self) -> str | None:
        for module in _running():
            found = self._modules.get(id(module))
            if found is not None and found[0]() is module:
                return found[1]
        return None


def _heads(ndim: int) -> int:
    return 1


def _observe(
    sites: Sites,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    first = sites[".entropy"].first
    if first.error:
        return
    reason = _refusal(query) or _refusal(key)
    if reason is not None:
        first.counts.skip(reason)
        return
    seed = crc32(f"{sites.name} {sites.buffers.closed}".encode())
    found = attention(query, key, attn_mask, is_causal=is_causal, scale=scale, seed=seed)
    for name, values in found._asdict().items():
        site = sites[f".{name}"].at(values)
        site.counts.count(*site.accumulate(values, None))


def _refusal(tensor: Tensor) -> str | None:
    """Why the scores of a query or key cannot be computed; None if they can."""
    if not is_plain(tensor):
        return type(tensor).__name__
    return unreadable(tensor) or (None if tensor.dim() == 4 else f"{tensor.dim()} dimensions")


def _running() -> Iterator[nn.Module]:
    """The modules whose methods are running on this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            found = frame.f_locals.get("self")
            if isinstance(found, nn.Module):
                yield found
        frame = frame.f_back


_watches: OrderedDict[int, Attention] = OrderedDict()
_original: Any = None
"""What `_stand_in` calls; None while torch has its own function."""


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    """What torch has for `scaled_dot_product_attention` while a watch records attention."""
    result = _original(*args, **kwargs)
    if is_dynamo_compiling():
        _leave_out()
    else:
        for watch in list(_watches.values()):
            watch.observe(*args, **kwargs)
    return result


class _Handle(RemovableHandle):
    """Gives torch its function back with the last watch, unless others have wrapped ours."""

    def remove(self) -> None:
        global _original
        super().remove()
        if not _watches and F.scaled_dot_product_attention is _stand_in:
            F.scaled_dot_product_attention, _original = _original, None


def _listen(watch: Attention) -> RemovableHandle:
    """Tell a watch of each call, until the handle is removed."""
    global _original
    handle = _Handle(_watches)
    _watches[handle.id] = watch
    if _original is None:
        _original = F.scaled_dot_product_attention
        script_as(_stand_in, "aten::scaled_dot_product_attention")
        F.scaled_dot_product_attention = _stand_in
    return handle


def _leave_out() -> None:
    """Note, while dynamo traces, that compiled code is left out."""
    for watch in _watches.values():
        if not watch.unseen:
            watch.unseen[ATTENTION] = "compiled code calls it"
            say("the attention of compiled code is not recorded")


mark_constant(_leave_out)
