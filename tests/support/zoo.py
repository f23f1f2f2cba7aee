"""A zoo of small models, and a training run of each that leaves behind all there is to compare."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from support.modules import Lambda
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils import checkpoint

import hookstats as hs
from hookstats.stats.bins import LinearBins
from hookstats.watching.settings import KINDS
from hookstats.watching.watch import watch


class Residual(nn.Module):
    """In-place activations and additions on convolutions and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(0.2, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.relu(self.norm(self.conv1(x))))
        y = self.conv2(y)
        y += x
        return self.relu(y)


class Views(nn.Module):
    """Modules whose outputs are views, changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (nn.Linear(6, 6) for _ in range(3))
        self.conv = nn.Conv2d(1, 1, 1)
        self.flat = nn.Flatten(0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x).relu_()
        z = self.fc2(y)
        z += y
        a, b = self.fc3(z).chunk(2, -1)
        c = self.conv((a * b)[None, 0])
        F.elu_(c)
        flat = self.flat(c)
        flat.mul_(2)
        return z.sum() + flat.square().sum() + c.sum()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.3, batch_first=True)
        self.gru = nn.GRUCell(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out, (h, _) = self.lstm(x)
        state = self.gru(out[:, 0])
        for t in range(1, out.shape[1]):
            state = self.gru(out[:, t], state)
        return state.sum() + h.square().sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y, weights = self.attention(x, key=x, value=x)
        return (self.norm(x + y) * weights.mean()).sum()


class Shared(nn.Module):
    """One module called twice, one parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.again = self.fc
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.fc.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(F.gelu(self.fc(x))))


class TwoHeads(nn.Module):
    def __init__(self, wrap: Callable[[Tensor, Tensor], Any], open: Callable[[Any], Any]) -> None:
        super().__init__()
        self.wrap, self.open = wrap, open
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.heads = Heads(wrap)

    def forward(self, x: Tensor) -> Tensor:
        logits, aux = self.open(self.heads(hidden=self.inner(x)))
        return logits.square().sum() + aux.sum()


class Heads(nn.Module):
    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap
        self.weight = nn.Parameter(torch.randn(2, 6))

    def forward(self, hidden: Tensor) -> Any:
        return self.wrap(*(hidden @ self.weight.t()).unbind(-1))


@dataclass
class Output:
    logits: Tensor
    aux: Tensor
    name: str = "output"


class Named(NamedTuple):
    logits: Tensor
    aux: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class Checkpointed(nn.Module):
    def __init__(self, inplace: bool = True, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(
            nn.Linear(6, 6), nn.ReLU(inplace), nn.Dropout(0.3), nn.Linear(6, 6), nn.GELU()
        )
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint.checkpoint(self.block, self.first(x), **self.how)
        return self.last(y)


# Under `train`'s own hooks on saved tensors, torch >= 2.14 wants to be told what to do with them.
_NEW = "respect_saved_tensors_hooks"
BYPASSED = {_NEW: False} if _NEW in inspect.signature(checkpoint.checkpoint).parameters else {}


def save_products() -> Any:
    def policy(ctx: object, op: object, *args: object, **kwargs: object) -> Any:
        saved = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        policies = checkpoint.CheckpointPolicy
        return policies.MUST_SAVE if saved else policies.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)


class CustomFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class Odd(nn.Module):
    """Inputs handed through, nothing returned, constants, leaves, gradients that stop."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.same = nn.Identity()
        self.own = Lambda(lambda x: self.fc.weight)
        self.none = Lambda(lambda x: None)
        self.stop = Lambda(lambda x: x.detach())
        self.custom = Lambda(lambda x: CustomFunction.apply(x + 0))
        self.index = Lambda(lambda x: x.topk(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.same(self.fc(x))
        self.none(y)
        values, places = self.index(y)
        stopped = self.stop(y) * places.sum()
        return (self.custom(y) * self.own(y).sum() + stopped).sum() + values.sum()


class Codes(nn.Module):
    """Gives each row the number of its nearest code."""

    book: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("book", torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x[..., None, :] - self.book).square().sum(-1).argmin(-1)


class Instruments(nn.Module):
    """What a watch looks at beside the outputs of modules: attention, a router, choices, a tensor
    without a module, a quantity."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.router = Codes(), nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        heads = x[:, None]
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)[:, 0]
        y = hs.observe("attended", attended)
        hs.observe("largest", lambda: y.amax(), channel_dim=None)
        share, best = self.router(y).softmax(-1).max(-1)
        for i, expert in enumerate(self.experts):
            y = torch.where((best == i)[..., None], expert(y), y)
        return y * share[..., None] * self.codes(y)[..., None]


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)


IMAGE, SEQUENCE = (2, 3, 8, 8), (3, 4, 6)

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 1)), SEQUENCE),
    "residual": (Residual, IMAGE),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.InstanceNorm2d(4, affine=True),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5, inplace=True),
            nn.Linear(36, 2),
        ),
        IMAGE,
    ),
    "views": (Views, SEQUENCE),
    "recurrent": (Recurrent, SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "encoder": (encoder, SEQUENCE),
    "shared": (Shared, SEQUENCE),
    "dict": (
        lambda: TwoHeads(lambda a, b: {"a": a, "b": [b]}, lambda o: (o["a"], *o["b"])),
        SEQUENCE,
    ),
    "dataclass": (lambda: TwoHeads(Output, lambda o: (o.logits, o.aux)), SEQUENCE),
    "named tuple": (lambda: TwoHeads(Named, lambda o: o), SEQUENCE),
    "model output": (
        lambda: TwoHeads(lambda a, b: ModelOutput(logits=a, aux=b), lambda o: (o.logits, o.aux)),
        SEQUENCE,
    ),
    "checkpoint": (lambda: Checkpointed(use_reentrant=False), SEQUENCE),
    "reentrant checkpoint": (lambda: Checkpointed(use_reentrant=True), SEQUENCE),
    "selective checkpoint": (
        lambda: Checkpointed(False, use_reentrant=False, context_fn=save_products, **BYPASSED),
        SEQUENCE,
    ),
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3)), nn.Softmax(-1)),
        SEQUENCE,
    ),
    "odd": (Odd, SEQUENCE),
    "instruments": (Instruments, SEQUENCE),
}


def train(
    name: str,
    watched: bool,
    steps: int = 3,
    observe: Callable[[nn.Module], Any] | None = None,
) -> dict[str, Any]:
    """Everything that a training run leaves behind; observe: what else to set on the model."""
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outcome: dict[str, Any] = {"saved": 0, "losses": [], "graphs": [], "versions": []}
    handle = None
    if watched:
        bins = LinearBins(8, -1, 1)
        handle = watch(model, optimizer, kinds=KINDS, channel_bins=bins)
    observer = None if observe is None else observe(model)

    def pack(tensor: Tensor) -> Tensor:
        outcome["saved"] += 1
        return tensor

    for _ in range(steps):
        x = torch.randn(shape, requires_grad=True)
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(x).square().mean()
        outcome["losses"].append(loss.detach())
        outcome["graphs"].append(list(nodes(loss)))
        outcome["versions"].append(x._version)
        loss.backward()
        optimizer.step()
        assert x.grad is not None
        outcome["input gradient"] = x.grad
    outcome["gradients"] = [parameter.grad for parameter in model.parameters()]
    outcome["state"] = model.state_dict()
    outcome["optimizer"] = optimizer.state_dict()["state"]
    outcome["random"] = torch.get_rng_state()
    if handle is not None:
        latest = handle.latest
        assert latest.step == steps - 1
        assert len(latest) > 0
        coverage = handle.coverage()
        for row in coverage:
            assert row.error is None
            assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row
        handle.close()
    if observer is not None:
        observer.close()
    return outcome


def nodes(loss: Tensor) -> Iterator[str]:
    """The names of the graph's nodes, as a walk through it meets them."""
    waiting = [loss.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node.name()
            waiting += [following for following, _ in node.next_functions]


def assert_same(a: object, b: object, where: str = "") -> None:
    """Equal, tensors bit for bit."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), where
        assert torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8)), where
    elif isinstance(a, dict) and isinstance(b, dict):
        assert list(a) == list(b), where
        for key, value in a.items():
            assert_same(value, b[key], f"{where}.{key}")
    elif isinstance(a, list) and isinstance(b, list):
        assert len(a) == len(b), where
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    else:
        assert a == b, where
