"""What the graph of a logged loss shows: each fault beside the training that it is mended to."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookstats.rules import Alert, LossGraph
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

Loss = Callable[[nn.Module, Tensor], Tensor]


def classes() -> Tensor:
    return torch.arange(24) % 5


def numbers() -> Tensor:
    return torch.linspace(-1, 1, 24)


def mlp(outputs: int = 5, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), activation(), nn.Linear(16, outputs))


class Heads(nn.Module):
    """Attention over the samples of a batch, in groups of six, its softmax along one dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.enter, self.leave, self.dim = nn.Linear(8, 24), nn.Linear(8, 5), dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.enter(x).view(4, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = F.softmax(q @ k.transpose(-2, -1) / 2, self.dim)
        out: Tensor = self.leave((weights @ v).transpose(1, 2).reshape(24, 8))
        return out


class Pooled(nn.Module):
    """Attention pooling over groups of six samples."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score, self.leave, self.dim = nn.Linear(8, 1), nn.Linear(8, 5), dim

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(4, 6, 8).tanh()
        out: Tensor = self.leave((F.softmax(self.score(x), self.dim) * x).sum(1))
        return out


class Hidden(nn.Module):
    """Layers in a container of the given type."""

    def __init__(self, container: Callable[[list[nn.Module]], object]) -> None:
        super().__init__()
        self.layers, self.head = container([nn.Linear(8, 8), nn.Linear(8, 8)]), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:  # type: ignore[attr-defined]
            x = layer(x).relu()
        out: Tensor = self.head(x)
        return out


def cross_entropy(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), classes())


def trained(model: nn.Module, loss: Loss, steps: int = 4, name: str = "loss") -> Watch:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer, rules=LossGraph(action=lambda alert: None)) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            found = loss(model, torch.randn(24, 8))
            w.log({name: found})
            if found.requires_grad:
                found.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert w.coverage().failures == {}
    return w


def said(model: nn.Module, loss: Loss) -> list[Alert]:
    return list(trained(model, loss).alerts)


FAULTS: dict[str, tuple[nn.Module, Loss, str]] = {
    "softmax": (
        mlp(),
        lambda m, x: F.cross_entropy(F.softmax(m(x), -1), classes()),
        "takes a softmax of the output of a softmax: a cross-entropy takes logits",
    ),
    "softmax as the exponential of log_softmax": (
        mlp(),
        lambda m, x: F.cross_entropy(F.log_softmax(m(x), 1).exp(), classes()),
        "takes a softmax of the output of a softmax",
    ),
    "softmax, smoothed": (
        mlp(),
        lambda m, x: F.cross_entropy(m(x).softmax(1), classes(), label_smoothing=0.1),
        "takes a softmax of the output of a softmax",
    ),
    "sigmoid": (
        mlp(),
        lambda m, x: F.cross_entropy(torch.sigmoid(m(x)), classes()),
        "takes a softmax of the output of a sigmoid",
    ),
    "relu": (
        mlp(),
        lambda m, x: F.cross_entropy(F.relu(m(x)), classes()),
        "takes a softmax of the output of a ReLU",
    ),
    "sigmoid twice": (
        mlp(1),
        lambda m, x: F.binary_cross_entropy_with_logits(m(x).sigmoid()[:, 0], numbers().abs()),
        "takes a sigmoid of the output of a sigmoid",
    ),
    "log_softmax over samples": (
        mlp(),
        lambda m, x: F.cross_entropy(F.log_softmax(m(x), 0), classes()),
        "takes a softmax of the output of a log_softmax along dimension 0",
    ),
    "nll_loss over samples": (
        mlp(),
        lambda m, x: F.nll_loss(F.log_softmax(m(x), 0), classes()),
        "takes the softmax of [24, 5] along dimension 0",
    ),
    "nll_loss of probabilities": (
        mlp(),
        lambda m, x: F.nll_loss(F.softmax(m(x), 1), classes()),
        "is nll_loss of the output of a softmax",
    ),
    "nll_loss of logits": (
        mlp(),
        lambda m, x: F.nll_loss(m(x), classes()),
        "is nll_loss of the output of a linear layer",
    ),
    "[N, 1] and [N]": (
        mlp(1),
        lambda m, x: F.mse_loss(m(x), numbers()),
        "compares [24, 1] with [24], which makes [24, 24]",
    ),
    "[N] and [N, 1]": (
        mlp(1),
        lambda m, x: F.smooth_l1_loss(m(x)[:, 0], numbers()[:, None]),
        "compares [24] with [24, 1], which makes [24, 24]",
    ),
    "[N, 1] and [N] by hand": (
        mlp(1),
        lambda m, x: ((m(x) - numbers()) ** 2).mean(),
        "compares [24, 1] with [24], which makes [24, 24]",
    ),
    "layers in a list": (
        Hidden(list),
        cross_entropy,
        "depends on 4 parameters that no watched model and no optimizer has",
    ),
    "no activation": (
        nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 5)),
        cross_entropy,
        "depends on linear layers with no activation between them",
    ),
    "no activation, regression": (
        nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)),
        lambda m, x: (m(x)[:, 0] - numbers()).square().mean(),
        "depends on linear layers with no activation between them",
    ),
    "attention over heads": (Heads(1), cross_entropy, "softmax of [4, 2, 6, 6] goes along dimen"),
    "attention over queries": (Heads(2), cross_entropy, "softmax of [4, 2, 6, 6] goes along dimen"),
    "softmax over one": (
        Pooled(-1),
        lambda m, x: F.cross_entropy(m(x), classes()[:4]),
        "depends on the softmax of [4, 6, 1] along dimension 2, which has size 1",
    ),
    "made anew": (
        mlp(),
        lambda m, x: torch.tensor(cross_entropy(m, x).item(), requires_grad=True),
        "is a new tensor, which no operator made",
    ),
    "detached": (
        mlp(),
        lambda m, x: F.cross_entropy(m(x).detach().requires_grad_(True), classes()),
        "depends on no parameter",
    ),
}
SOUND: dict[str, tuple[nn.Module, Loss]] = {
    "cross_entropy": (mlp(), cross_entropy),
    "log_softmax twice": (mlp(), lambda m, x: F.cross_entropy(m(x).log_softmax(1), classes())),
    "nll_loss": (mlp(), lambda m, x: F.nll_loss(F.log_softmax(m(x), 1), classes())),
    "nll_loss of a mixture": (mlp(), lambda m, x: F.nll_loss(m(x).softmax(1).log(), classes())),
    "binary": (
        mlp(1),
        lambda m, x: F.binary_cross_entropy(m(x).sigmoid()[:, 0], numbers().abs()),
    ),
    "[N] and [N]": (mlp(1), lambda m, x: F.mse_loss(m(x)[:, 0], numbers())),
    "pairs": (mlp(1), lambda m, x: (m(x) - m(x).T).square().mean()),
    "layers in a ModuleList": (Hidden(nn.ModuleList), cross_entropy),
    "a bottleneck": (
        nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8)),
        lambda m, x: F.mse_loss(m(x), x),
    ),
    "one layer": (nn.Linear(8, 5), cross_entropy),
    "attention": (Heads(-1), cross_entropy),
    "pooling": (Pooled(1), lambda m, x: F.cross_entropy(m(x), classes()[:4])),
    "a penalty of a slope": (
        mlp(1, nn.Tanh),
        lambda m, x: (
            torch.autograd.grad(m(x.requires_grad_(True)).sum(), x, create_graph=True)[0]
            .square()
            .mean()
        ),
    ),
    "logged without its graph": (mlp(), lambda m, x: cross_entropy(m, x).detach()),
    "reentrant checkpoint": (
        mlp(),
        lambda m, x: F.cross_entropy(
            checkpoint(m, x.requires_grad_(True), use_reentrant=True),  # type: ignore[arg-type]
            classes(),
        ),
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    model, loss, says = FAULTS[fault]
    (alert,) = said(model, loss)
    assert alert.step <= 1
    assert (alert.site, alert.kind, alert.rule) == ("loss", "scalar", "loss graph")
    assert says in alert.message
    assert alert.advice
    assert alert.severity == ("error" if fault in ("made anew", "detached") else "warning")


@pytest.mark.parametrize("name", SOUND)
def test_silent_about_what_is_sound(name: str) -> None:
    assert said(*SOUND[name]) == []


def test_a_bounded_regression_is_a_note() -> None:
    (alert,) = said(mlp(1), lambda m, x: F.mse_loss(m(x).relu()[:, 0], numbers()))
    assert alert.severity == "note"
    assert "compares targets with the output of a ReLU" in alert.message


def test_a_critic_that_another_optimizer_trains_is_known_to_someone() -> None:
    critic = mlp(1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.01)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        of_critic.zero_grad()
        critic(model(x).detach()[:, :1].expand(24, 8)).mean().backward()
        of_critic.step()
        return critic(model(x)[:, :1].expand(24, 8)).square().mean()  # type: ignore[no-any-return]

    assert said(mlp(), loss) == []


def test_other_operators_are_looked_at_again() -> None:
    losses = iter([1.0, 1.0, 1.0, 0.0, 0.0])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x) if next(losses) else model(x).softmax(1), classes())

    (alert,) = trained(mlp(), loss, steps=5).alerts
    assert alert.step == 3


def test_other_numbers_are_not_looked_at() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(model(x).softmax(1), classes())

    assert trained(mlp(), loss, name="temperature").alerts == ()


@pytest.mark.check
def test_compiled_code_is_said_to_be_unseen() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    w = trained(model, lambda m, x: F.cross_entropy(compiled(x).softmax(1), classes()))
    assert [alert.step for alert in w.alerts] == [0]
    assert "has compiled code" in w.coverage().unseen["the graph of loss"]
    assert "the graph of loss is not seen" in str(w.coverage())


def test_a_graph_is_not_kept() -> None:
    kept: list[weakref.ref[Tensor]] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x)
        kept.append(weakref.ref(out))
        return F.cross_entropy(out, classes())

    trained(mlp(), loss)
    assert [reference() for reference in kept] == [None] * 4


def test_a_large_graph_is_cut() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x)
        for _ in range(4000):
            out = out + 0
        return F.cross_entropy(out.softmax(1), classes())

    (alert,) = trained(mlp(), loss, steps=2).alerts
    assert alert.value == 4000
    assert "takes a softmax of the output of a softmax" in alert.message
