"""Sound trainings that rules disturbed once: kinds from public programs, each with siblings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

import hookstats as hs
from hookstats.rules import Alert

KINDS = ("input", "output", "grad_output", "param_grad")


def told(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    steps: int = 40,
    optimizer: Any = None,
    kinds: tuple[str, ...] = KINDS,
) -> list[Alert]:
    """The alerts of a training that are worse than a note."""
    optimizer = optimizer or Adam(model.parameters(), lr=1e-3)
    with hs.watch(model, optimizer, kinds=kinds, every=1) as w:
        for step in range(steps):
            loss = loss_of(step)
            w.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert w.coverage().failures == {}
    return [alert for alert in w.alerts if alert.level]


class Functional(nn.Module):
    """A dropout behind an activation that is no module."""

    def __init__(self, act: Callable[[Tensor], Tensor], p: float) -> None:
        super().__init__()
        self.fc1, self.dropout, self.fc2 = nn.Linear(32, 128), nn.Dropout(p), nn.Linear(128, 10)
        nn.init.constant_(self.fc1.bias, -0.45)  # a quarter of the units are open
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.dropout(self.act(self.fc1(x))))
        return out


@pytest.mark.parametrize("act", [functional.relu, functional.gelu, functional.relu6])
@pytest.mark.parametrize("p", [0.25, 0.5])
def test_a_dropout_behind_a_functional_activation(
    act: Callable[[Tensor], Tensor], p: float
) -> None:
    model = Functional(act, p)

    def loss_of(step: int) -> Tensor:
        return functional.cross_entropy(model(torch.randn(64, 32)), torch.randint(10, (64,)))

    assert told(model, loss_of, 20, SGD(model.parameters(), lr=0.01)) == []


@pytest.mark.parametrize("names", [("in_proj", "out_proj"), ("q_proj", "o_proj"), ("qkv", "proj")])
def test_layers_of_an_mlp_with_names_of_attention(names: tuple[str, str]) -> None:
    model = nn.Sequential()
    first, last = names
    for name, module in ((first, nn.Linear(10, 30)), ("act", nn.ReLU()), (last, nn.Linear(30, 5))):
        model.add_module(name, module)
    assert told(model, lambda step: model(torch.rand(20, 10)).square().mean()) == []


@pytest.mark.check
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_a_state_that_is_zero_at_the_start_of_each_epoch(cell: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.rnn, self.dec = nn.Embedding(20, 16), cell(16, 16), nn.Linear(16, 20)

        def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            out, state = self.rnn(self.emb(x), state)
            return self.dec(out), state

    model, data, kept = Model(), torch.randint(20, (361, 8)), list[Any]()

    def loss_of(step: int) -> Tensor:
        zero, at = torch.zeros(1, 8, 16), 12 * (step % 30)
        state = kept.pop() if at else ((zero, zero) if cell is nn.LSTM else zero)
        out, state = model(data[at : at + 12], state)
        kept[:] = [state.detach() if cell is nn.GRU else tuple(t.detach() for t in state)]
        return functional.cross_entropy(out.flatten(0, 1), data[at + 1 : at + 13].flatten())

    assert told(model, loss_of, 75, AdamW(model.parameters(), lr=3e-3)) == []


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Softmax(-1)])
def test_a_loss_of_probabilities_that_are_certain(last: nn.Module) -> None:
    """The derivative of the logarithm is huge where the probability is wrong, and that of the
    sigmoid cancels it."""
    classes = 1 if isinstance(last, nn.Sigmoid) else 3
    model = nn.Sequential(nn.Linear(10, classes), last)
    with torch.no_grad():
        model[0].weight.mul_(15)
    truth = torch.randn(10, classes)

    def loss_of(step: int) -> Tensor:
        x = 1.5 * torch.randn(64, 10)
        if classes == 1:
            target = (x @ truth > 0).float()
            return functional.binary_cross_entropy(model(x), target)
        return functional.nll_loss((model(x) + 1e-12).log(), (x @ truth).argmax(1))

    assert told(model, loss_of, 40, SGD(model.parameters(), lr=1e-3)) == []


class Add(nn.Module):
    """Adds a mask: 0 or -inf."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores + mask


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.add, self.softmax = Add(), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.triu(torch.full((x.shape[1],) * 2, -torch.inf), 1)
        scores = self.add(q @ k.transpose(1, 2) / 8**0.5, mask)
        return x + self.out(self.softmax(scores) @ v)


class Actions(nn.Module):
    """A policy that never takes an action that is not allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.add = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)), Add()

    def forward(self, x: Tensor) -> Tensor:
        allowed = (torch.rand(len(x), 5) < 0.6).index_fill(1, torch.tensor(0), True)
        out: Tensor = self.add(
            self.body(x), torch.zeros(len(x), 5).masked_fill(~allowed, -torch.inf)
        )
        return out


class Pooled(nn.Module):
    """The maximum over tokens, of which padding has none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.add, self.head = nn.Linear(8, 16), Add(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.randint(1, x.shape[1] + 1, (len(x), 1, 1))
        padding = torch.arange(x.shape[1])[None, :, None] >= lengths
        mask = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
        out: Tensor = self.head(self.add(self.fc(x), mask).amax(1))
        return out


@pytest.mark.parametrize("kind", ["attention", "actions", "pooling"])
def test_minus_infinity_masks_what_does_not_count(kind: str) -> None:
    model: nn.Module = {"attention": Attention, "actions": Actions, "pooling": Pooled}[kind]()

    def loss_of(step: int) -> Tensor:
        if kind == "actions":
            scores = functional.log_softmax(model(torch.randn(32, 8)), -1)
            taken = torch.distributions.Categorical(logits=scores.detach()).sample()
            return -(torch.randn(32) * scores.gather(1, taken[:, None])[:, 0]).mean()
        x = torch.randn(16, 6, 8)
        out = model(x)
        return (out - x).square().mean() if kind == "attention" else out.square().mean()

    assert told(model, loss_of, 12) == []


class Residual(nn.Module):
    """A block whose branch begins small, as in the residual networks of flows, or with zeros."""

    def __init__(self, width: int, size: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        for x in self.layers[1].parameters():
            nn.init.uniform_(x, -size, size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers[1](torch.relu(self.layers[0](torch.relu(x))))
        return out


@pytest.mark.parametrize("size", [1e-3, 0.0])
@pytest.mark.parametrize("copies", [2, 4])
def test_branches_that_begin_small_in_each_copy_of_a_block(size: float, copies: int) -> None:
    blocks = [Residual(16, size) for _ in range(copies)]
    model = nn.Sequential(nn.Linear(10, 16), *blocks, nn.Linear(16, 10))
    assert told(model, lambda step: model(torch.randn(30, 10)).square().mean(), 3) == []


def test_small_layers_without_another_way_past_them_are_named() -> None:
    blocks = [Residual(16, 1e-3) for _ in range(3)]
    for block in blocks:
        block.forward = block.layers[1].forward  # type: ignore[method-assign]
    model = nn.Sequential(nn.Linear(10, 16), *blocks, nn.Linear(16, 10))
    found = told(model, lambda step: model(torch.randn(30, 10)).square().mean(), 3)
    assert {alert.rule for alert in found} >= {"initialisation"}


def test_networks_whose_last_layers_begin_with_zeros() -> None:
    """As those of coupling layers, which are the identity then."""
    nets = nn.ModuleList(
        nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        for _ in range(3)
    )
    for net in nets:
        nn.init.zeros_(net[-1].weight)  # type: ignore[index]

    def loss_of(step: int) -> Tensor:
        x = torch.randn(30, 4)
        for net in nets:
            x = x + net(x)
        return (x - 1).square().mean()

    model = nn.ModuleDict({"nets": nets})
    assert told(model, loss_of, 3) == []


def test_blocks_all_of_whose_weights_begin_small() -> None:
    blocks = [Residual(16, 1e-3) for _ in range(3)]
    for block in blocks:
        nn.init.normal_(block.layers[0].weight, std=1e-3)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Linear(10, 16), *blocks, nn.Linear(16, 10))
    assert told(model, lambda step: model(torch.randn(30, 10)).square().mean(), 3) == []


class Both(nn.Module):
    """Moves points, and tells their features of it, as equivariant networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.points = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.features(x) * at.norm(dim=1, keepdim=True)
        return x, at + self.points(x)


@pytest.mark.parametrize(("unused", "severity"), [(2, "note"), (1, "warning")])
def test_what_the_last_block_gives_to_no_other(unused: int, severity: str) -> None:
    blocks, last = nn.ModuleList(Both() for _ in range(3)), nn.Linear(16, 1)

    def loss_of(step: int) -> Tensor:
        x, at = torch.randn(30, 16), torch.randn(30, 3)
        for i, block in enumerate(blocks):
            x, moved = block(x, at)
            at = at if i == unused else moved
        return (last(x) - 1).square().mean()

    model = nn.ModuleDict({"blocks": blocks, "last": last})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with hs.watch(model, optimizer, every=1) as w:
        for step in range(8):
            optimizer.zero_grad()
            loss_of(step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    found = [alert for alert in w.alerts if "blocks.2.points" in (alert.site or "")]
    found += [alert for alert in w.alerts if "blocks.1.points" in (alert.site or "")]
    assert [alert.severity for alert in found] == [severity]


class Factors(nn.Module):
    """A factorization machine, whose tables begin next to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Embedding(200, 1), nn.Embedding(200, 16)
        self.deep = nn.Linear(80, 1)
        for table in (self.linear, self.table):
            nn.init.normal_(table.weight, std=1e-4)

    def forward(self, x: Tensor) -> Tensor:
        v = self.table(x)
        pairs = (v.sum(1).square() - v.square().sum(1)).sum(1)
        out: Tensor = self.linear(x).sum((1, 2)) + pairs / 2 + self.deep(v.flatten(1))[:, 0]
        return out


def test_tables_that_begin_next_to_zero_grow_at_once() -> None:
    model, truth = Factors(), torch.randn(200)

    def loss_of(step: int) -> Tensor:
        x = torch.randint(200, (128, 5))
        targets = (truth[x].sum(1) > 0).float()
        return functional.binary_cross_entropy_with_logits(model(x), targets)

    assert told(model, loss_of, kinds=("output", "param_grad")) == []


def test_an_average_that_is_learnt_begins_with_equal_weights() -> None:
    """As linear forecasts do: targets tell the units of the last layer apart."""
    model = nn.ModuleDict({name: nn.Linear(48, 12) for name in ("trend", "season")})
    for layer in model.values():
        nn.init.constant_(layer.weight, 1 / 48)  # type: ignore[arg-type]

    def loss_of(step: int) -> Tensor:
        x = torch.randn(64, 48)
        out: Tensor = model["trend"](x) + model["season"](x.cumsum(1) / 7) - x[:, :12]
        return out.square().mean()

    assert told(model, loss_of, 3) == []


class EnsembleLinear(nn.Linear):
    """Members of an ensemble that scale what goes in and out, and share a random matrix."""

    def __init__(self, inputs: int, outputs: int, members: int) -> None:
        super().__init__(inputs, outputs)
        self.r = nn.Parameter(torch.randn(members, inputs).sign())
        self.s = nn.Parameter(torch.ones(members, outputs))
        self.weight_log_sigma = nn.Parameter(torch.full((outputs, inputs), -2.3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.weight_log_sigma.exp() * torch.randn_like(self.weight)
        out: Tensor = functional.linear(x * self.r, weight) * self.s + self.bias
        return out


def test_scales_and_deviations_are_no_matrices() -> None:
    model = nn.Sequential(EnsembleLinear(64, 32, 8), nn.ReLU(), EnsembleLinear(32, 32, 8))
    assert told(model, lambda step: model(torch.randn(30, 1, 64)).square().mean(), 3) == []
