"""hs.check: finds what is wrong before the training, says nothing else, changes nothing."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Linear, ReLU, Sequential

import hookstats as hs

LETTERS = 30
LENGTH = 16


def tokens(samples: int = 6, shift: int = 1) -> tuple[Tensor, Tensor]:
    """Random tokens, and their targets: the next ones, or the tokens themselves."""
    found = torch.randint(LETTERS, (samples, LENGTH + 1))
    return found[:, :LENGTH], found[:, shift : LENGTH + shift]


def per_token(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


class Language(nn.Module):
    """A small transformer over tokens, of torch's own layers."""

    def __init__(self, causal: bool = True, positions: bool = True, view: bool = False) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LETTERS, 32), nn.Embedding(LENGTH, 32)
        layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.head = Linear(32, LETTERS)
        self.causal, self.view = causal, view
        if not positions:
            self.position.weight.requires_grad_(False).zero_()
            self.position = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.token(x)
        if self.position is not None:
            hidden = hidden + self.position(torch.arange(x.shape[1]))
        mask = torch.full((x.shape[1],) * 2, -torch.inf).triu(1) if self.causal else None
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask)
        if self.view:
            hidden = hidden.reshape(x.shape[1], len(x), -1).transpose(0, 1)
        return self.head(hidden)


class Recurrent(nn.Module):
    """An LSTM over samples of several times; its state may go over to the next batch."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16, batch_first=batch_first)
        self.head = Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Softmax(nn.Module):
    """A function in forward, which no module stands for."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.last, self.dim = Linear(8, 16), Linear(16, 3), dim

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.softmax(self.first(x), self.dim))


class Own(nn.Module):
    """What forwards may do to a model: state of any kind, noise of any generator."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = Linear(8, 8), nn.BatchNorm1d(8), Linear(8, 3)
        self.table = nn.Embedding(5, 8, max_norm=0.5)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.state: Tensor | None = None
        self.noise = torch.Generator()
        self.seen: list[float] = []
        self.by_name: dict[str, Tensor] = {"mean": torch.zeros(8)}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(random.random() + numpy.random.rand())  # noqa: NPY002
        x = x + 0.01 * torch.randn(x.shape, generator=self.noise)
        hidden = self.drop(self.norm(self.first(x) + self.table(torch.arange(len(x)) % 5)))
        self.by_name["mean"].add_(hidden.detach().mean(0))
        self.by_name[f"call {len(self.seen)}"] = hidden
        self.state = hidden.detach()
        return self.last(hidden)


def deep(module: Callable[[], nn.Module], layers: int = 12) -> nn.Module:
    return Sequential(*(part for _ in range(layers) for part in (Linear(32, 32), module())))


def xy(*shape: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(*shape), torch.randint(classes, (shape[0],))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def states(model: nn.Module) -> list[Any]:
    """All that may not change: values, identities, modes, generators."""
    tensors = [*model.parameters(), *model.buffers(), *model.by_name.values()]
    gradients = [p.grad for p in model.parameters()]
    return [
        [one.detach().numpy().tobytes() for one in tensors],
        [(id(one), one.numpy().tobytes()) for one in gradients if one is not None],
        [(module.training, list(vars(module))) for module in model.modules()],
        [len(module._forward_hooks) for module in model.modules()],
        (list(model.seen), list(model.by_name), model.state),
        (torch.get_rng_state().numpy().tobytes(), random.getstate()),
        model.noise.get_state().numpy().tobytes(),
        [str(part) for part in numpy.random.get_state()],  # noqa: NPY002
    ]


@pytest.mark.parametrize("mode", ["train", "eval", "mixed", "watched"])
def test_the_model_and_the_generators_stay_as_they_were(mode: str) -> None:
    model = Own()
    batch = xy(10, 8)
    model.train(mode != "eval")
    model.norm.train(mode == "train")
    F.cross_entropy(model.last(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long)).backward()
    optimizer = torch.optim.Adam(model.parameters())
    watch = hs.watch(model, optimizer) if mode == "watched" else None
    before = states(model), [one.clone() for one in batch]
    hs.check(model, batch, F.cross_entropy, optimizer=optimizer, quiet=True)
    assert states(model) == before[0]
    assert all(torch.equal(a, b) for a, b in zip(batch, before[1], strict=True))
    assert not optimizer.state
    if watch is not None:
        watch.close()
        assert all(not row.forwards for row in watch.coverage().rows)


def test_devices_that_are_not_in_use_get_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    hs.check(Linear(8, 3), xy(6, 8), F.cross_entropy, quiet=True)
    assert seeds == []


def test_a_wrapper_stands_for_its_model() -> None:
    wrapped = nn.DataParallel(Recurrent(batch_first=False))
    (found,) = hs.check(wrapped, xy(6, 5, 8), F.cross_entropy, quiet=True)
    assert found.where == "rnn"


def test_the_model_stays_as_it_was_where_the_check_fails() -> None:
    model, batch = Own(), torch.randn(4, 9)
    before = states(model)
    with pytest.raises(RuntimeError, match="shapes"):
        hs.check(model, batch, quiet=True)
    assert states(model) == before


FAULTS: dict[str, tuple[Callable[[], tuple[Any, ...]], str, str, str]] = {
    "batch_first": (
        lambda: (Recurrent(batch_first=False), xy(6, 5, 8), F.cross_entropy),
        *("samples", "rnn", "batch_first=True"),
    ),
    "view for transpose": (
        lambda: (Language(view=True), tokens(), per_token),
        *("samples", "", "transpose"),
    ),
    "softmax over the batch": (
        lambda: (Softmax(0), xy(6, 8), nn.CrossEntropyLoss()),
        *("samples", "", "softmax"),
    ),
    "no causal mask": (
        lambda: (Language(causal=False), tokens(), per_token),
        *("future tokens", "layers.0.self_attn", "causal mask"),
    ),
    "no positions": (
        lambda: (
            Language(causal=False, positions=False),
            tokens()[0],
            lambda output: output.square().mean(),
        ),
        *("token order", "", "positions"),
    ),
    "targets are not shifted": (
        lambda: (Language(), tokens(shift=0), per_token),
        *("targets", "", "shift the targets"),
    ),
    "deep sigmoids": (
        lambda: (deep(nn.Sigmoid), xy(8, 32, classes=32), F.cross_entropy),
        *("gain by depth", "0", "sigmoid"),
    ),
    "softmax over one value": (
        lambda: (Sequential(Linear(8, 1), nn.Softmax(-1), Linear(1, 3)), xy(6, 8), F.cross_entropy),
        *("input", "1", "softmax over one value"),
    ),
    "outputs are too large": (
        lambda: (Sequential(Linear(8, 64), ReLU(), Linear(64, 3)), xy(6, 8), large),
        *("initial loss", "", "embeddings of std 0.02"),
    ),
    "targets are too large": (
        lambda: (Linear(8, 1), (torch.randn(6, 8), 2e5 * torch.randn(6, 1)), F.mse_loss),
        *("initial loss", "", "standardise the targets"),
    ),
    "softmax before a cross-entropy": (
        lambda: (Linear(8, 3), xy(6, 8), lambda o, t: F.cross_entropy(F.softmax(o, 1), t)),
        *("loss graph", "", "without an activation"),
    ),
    "outputs [N, 1] and targets [N]": (
        lambda: (Linear(8, 1), (torch.randn(6, 8), torch.randn(6)), squares),
        *("loss graph", "", "one shape"),
    ),
    "layers in a list": (
        lambda: (Listed(), xy(6, 8), F.cross_entropy),
        *("loss graph", "", "nn.ModuleList"),
    ),
    "detached": (
        lambda: (Linear(8, 3), xy(6, 8), lambda o, t: F.cross_entropy(o.detach(), t)),
        *("gradients", "", "detach"),
    ),
    "a layer that is never called": (
        lambda: (nn.Sequential(Linear(8, 3), Idle()), xy(6, 8), F.cross_entropy),
        *("gradients", "1.idle.weight", "call these layers"),
    ),
    "NaN in the batch": (
        lambda: (Linear(8, 3), (torch.full((6, 8), torch.nan), xy(6, 8)[1]), F.cross_entropy),
        *("dtypes", "", "missing values"),
    ),
    "bytes": (
        lambda: (
            Sequential(nn.Flatten(), Linear(64, 3)),
            (torch.randint(256, (6, 1, 8, 8)).float(), xy(6, 8)[1]),
            lambda o, t: F.cross_entropy(o / 100, t),
        ),
        *("dtypes", "", "255"),
    ),
    "float16": (
        lambda: (
            Linear(8, 3).half(),
            (torch.randn(6, 8).half(), xy(6, 8)[1]),
            lambda o, t: F.cross_entropy(o.float(), t),
        ),
        *("dtypes", "weight", "GradScaler"),
    ),
}


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.idle = Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Listed(nn.Module):
    """Layers that no module has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = [Linear(8, 8), Linear(8, 8)], Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def large(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(100 * output, target)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_where_it_is(name: str) -> None:
    made, check, where, advice = FAULTS[name]
    model, batch, loss = made()
    found = hs.check(model, batch, loss, quiet=True)
    (finding,) = [one for one in found if one.check == check]
    assert finding.severity != "note"
    assert finding.where == where
    assert advice in finding.advice
    assert finding.message == str(finding)


def test_parameters_that_no_optimizer_has() -> None:
    model = Sequential(Linear(8, 8), ReLU(), Linear(8, 3))
    optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
    (found,) = hs.check(model, xy(6, 8), F.cross_entropy, optimizer=optimizer, quiet=True)
    assert (found.check, found.severity, found.where) == ("optimizer", "warning", "2.weight")
    other = torch.optim.SGD(Linear(2, 2).parameters(), 0.1)
    (found,) = hs.check(model, xy(6, 8), F.cross_entropy, optimizer=other, quiet=True)
    assert found.severity == "error"
    assert "another model" in found.message


def image(model: nn.Module) -> tuple[nn.Module, Any, Any]:
    return model, xy(6, 3, 16, 16), F.cross_entropy


def of_rows(model: nn.Module) -> tuple[nn.Module, Any, Any]:
    return model, xy(6, 32), lambda o, t: F.cross_entropy(o[:, :3], t)


def of_sequences(model: nn.Module) -> tuple[nn.Module, Any, Any]:
    return model, (torch.randn(6, 10, 32),), None


def zero_at_the_end() -> nn.Module:
    model = Sequential(Linear(32, 32), ReLU(), Linear(32, 3))
    nn.init.zeros_(model[2].weight)
    return model


def cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    parts = [nn.Conv2d(3, 8, 3), norm(8), ReLU(), nn.Conv2d(8, 16, 3), norm(16), ReLU()]
    return Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Linear(16, 3))


class Bag(nn.Module):
    """The mean of the words: their order does not matter, and is not meant to."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(LETTERS, 8), Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


class Last(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn, self.head = rnn, Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Teacher(nn.Module):
    """Averaged weights beside the trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Linear(8, 3), Linear(8, 3)
        self.teacher.load_state_dict(self.student.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher(x)
        return self.student(x)


SOUND: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "MLP": lambda: of_rows(Sequential(Linear(32, 64), ReLU(), Linear(64, 3))),
    "deep ReLU": lambda: of_rows(Sequential(deep(ReLU, 6), Linear(32, 3))),
    "deep Tanh": lambda: of_rows(Sequential(deep(nn.Tanh, 6), Linear(32, 3))),
    "Dropout": lambda: of_rows(Sequential(Linear(32, 64), ReLU(), nn.Dropout(0.5), Linear(64, 3))),
    "zeros at the end": lambda: of_rows(zero_at_the_end()),
    "BatchNorm": lambda: image(cnn(nn.BatchNorm2d)),
    "GroupNorm": lambda: image(cnn(lambda width: nn.GroupNorm(2, width))),
    "InstanceNorm": lambda: image(cnn(nn.InstanceNorm2d)),
    "BatchNorm without statistics": lambda: image(
        cnn(lambda width: nn.BatchNorm2d(width, track_running_stats=False))
    ),
    "causal language": lambda: (Language(), tokens(), per_token),
    "autoencoder of tokens": lambda: (Language(causal=False), tokens(shift=0), per_token),
    "bag of words": lambda: (Bag(), (tokens()[0], xy(6, 8)[1]), F.cross_entropy),
    "LSTM": lambda: (Recurrent(), xy(6, 5, 8), F.cross_entropy),
    "GRU": lambda: (Last(nn.GRU(8, 16, batch_first=True)), xy(6, 5, 8), F.cross_entropy),
    "both ways": lambda: (
        Last(nn.RNN(8, 8, batch_first=True, bidirectional=True)),
        xy(6, 5, 8),
        F.cross_entropy,
    ),
    "layer of an encoder": lambda: of_sequences(
        nn.TransformerEncoderLayer(32, 4, batch_first=True)
    ),
    "transformer": lambda: (
        nn.Transformer(32, 4, 1, 1, 64, batch_first=True),
        (torch.randn(6, 10, 32), torch.randn(6, 7, 32)),
        None,
    ),
    "convolution": lambda: of_sequences(nn.Conv1d(10, 4, 3)),
    "softmax over classes": lambda: (Softmax(1), xy(6, 8), F.cross_entropy),
    "regression": lambda: (Linear(8, 1), (torch.randn(6, 8), torch.randn(6, 1)), F.mse_loss),
    "two classes": lambda: (
        Linear(8, 1),
        (torch.randn(6, 8), torch.randint(2, (6, 1)).float()),
        nn.BCEWithLogitsLoss(reduction="sum"),
    ),
    "teacher": lambda: (Teacher(), xy(6, 8), F.cross_entropy),
    "bfloat16": lambda: (
        Linear(8, 3).bfloat16(),
        (torch.randn(6, 8).bfloat16(), xy(6, 8)[1]),
        lambda o, t: F.cross_entropy(o.float(), t),
    ),
    "batch of one": lambda: (Linear(8, 3), xy(1, 8), F.cross_entropy),
}


@pytest.mark.parametrize(
    "name",
    [
        name if i % 2 else pytest.param(name, marks=pytest.mark.check)
        for i, name in enumerate(SOUND)
    ],
)
def test_sound_models_have_no_finding_worse_than_a_note(name: str) -> None:
    model, batch, loss = SOUND[name]()
    optimizer = torch.optim.Adam(model.parameters())
    found = hs.check(model, batch, loss, optimizer=optimizer, quiet=True)
    assert [str(one) for one in found if one.severity != "note"] == []
    without = hs.check(model, batch, loss, quiet=True)
    assert [str(one) for one in without if one.severity != "note"] == []


class Graph(nn.Module):
    """Nodes that see each other on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.linear(edges @ x)


def test_models_that_mix_a_batch_on_purpose_say_so() -> None:
    batch = torch.randn(6, 8), torch.rand(6, 6)
    assert [one.check for one in hs.check(Graph(), batch, quiet=True)] == ["samples"]
    assert hs.check(Graph(), batch, batch_dim=None, quiet=True) == ()


def test_samples_may_lie_along_dimension_1() -> None:
    batch = (torch.randn(5, 6, 8),)
    assert hs.check(nn.LSTM(8, 16), batch, batch_dim=1, quiet=True) == ()
    assert [one.check for one in hs.check(nn.LSTM(8, 16), batch, quiet=True)] == ["samples"]


def test_a_batch_is_a_tensor_a_tuple_or_a_mapping() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(8, 3)

        def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.linear(values)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    values, labels = xy(6, 8)
    for batch in ((values, labels), [values, labels], {"values": values, "labels": labels}):
        assert hs.check(Named(), batch, quiet=True) == ()
    assert hs.check(Linear(8, 3), values, quiet=True) == ()


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hs.check(Recurrent(batch_first=False), xy(6, 5, 8), F.cross_entropy)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hookstats check: Recurrent, 1,715 parameters"
    assert lines[1].split() == ["samples", "error", "mixed", "in", "'rnn'"]
    assert any(line.split()[:2] == ["recording", "ok"] for line in lines)
    assert lines[-1].startswith("error: samples leak into each other in 'rnn': ")
    assert "; what helps: give it batch_first=True" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", torch.ones(2)), "model = 'model': expected a torch.nn.Module"),
        ((Linear(2, 2), torch.ones(2, 2), F.mse_loss), r"expected \(inputs, target\)"),
        ((nn.LazyLinear(2), torch.ones(2, 2)), "'weight' is lazy"),
        ((Linear(2, 2, device="meta"), torch.ones(2, 2)), "with values"),
        ((Linear(2, 2), torch.ones(3, 2), lambda o: o), r"loss returned \[3, 2\]"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hs.check(*arguments)


def test_the_dimension_of_samples_is_checked() -> None:
    with pytest.raises(ValueError, match="batch_dim = 2: expected 0, 1, or None"):
        hs.check(Linear(2, 2), torch.ones(2, 2), batch_dim=2)


def test_a_container_that_is_no_dictionary_or_list_stays_too() -> None:
    model = Linear(8, 3)
    model.kept = deque([1])
    hs.check(model, xy(6, 8), F.cross_entropy, quiet=True)
    assert list(model.kept) == [1]
