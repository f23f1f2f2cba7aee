"""What modules choose: experts of a Mixtral, codes of a VQ layer, experts of a switch layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.modules import Lambda
from torch import Tensor, nn
from torch.optim import SGD

from hookstats.hooks.routers import entropies, entropy_of
from hookstats.records.record import StepRecord
from hookstats.rules import Alert, DeadChannels, Untrained
from hookstats.watching.watch import watch


class Quantiser(nn.Module):
    """Gives each value of [N, 4] its nearest code, and the number of the code."""

    def __init__(self, codes: int = 6, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.register_buffer("book", torch.randn(codes, 4))
        self.scale = nn.Linear(4, 4)
        self.dtype = dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.cdist(x, self.book).argmin(1)  # type: ignore[arg-type]
        return self.scale(x) + self.book[chosen], chosen.to(self.dtype)  # type: ignore[index]


class Broken(dict[str, Tensor]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def test_outputs_that_fail_to_be_walked_end_no_training() -> None:
    model = nn.Sequential(Quantiser(), Lambda(lambda found: found["x"]))
    quantise = model[0].forward
    model[0].forward = lambda x: Broken(x=quantise(x)[0])
    with watch(model, rules=()) as w:
        with pytest.warns(RuntimeWarning, match="no items") as caught:
            model(torch.randn(5, 4))
        assert sum("chooses failed" in str(one.message) for one in caught) == 1
        model(torch.randn(5, 4)).sum().backward()
        w.step()
        assert ("1", "output") in w.latest


class Switch(nn.Module):
    """The best of three experts for each row, but for `idle`."""

    def __init__(self, idle: int = -1, name: str = "experts") -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.name = name
        self.add_module(name, nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
        nn.init.constant_(self.router.bias, 0.0)
        if idle >= 0:
            nn.init.constant_(self.router.bias[idle : idle + 1], -1e3)

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.get_submodule(self.name).children()):
            rows = (chosen == i).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, None])
        return out


def test_steps_that_are_not_recorded_run_without_these_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Switch(), Quantiser())
    optimizer = SGD(model.parameters(), lr=0.0)
    hooked = [model[1].get_submodule("router"), model[2]]
    with watch(model, optimizer, every=4, rules=()) as found:
        for step in range(6):
            assert [bool(module._forward_hooks) for module in hooked] == [step % 4 == 0] * 2
            model(torch.randn(16, 4))[0].sum().backward()
            optimizer.step()
        assert {"router_entropy/1.router", "load_entropy/2"} <= found.latest.scalars.keys()
        assert found.latest.step == 4


def trained(
    model: nn.Module,
    step: Callable[[], Tensor],
    steps: int = 1,
    rules: object = (),
) -> tuple[StepRecord, tuple[Alert, ...]]:
    """The last record of a few steps, and what rules said."""
    optimizer = SGD(model.parameters(), 1e-3)
    with watch(model, optimizer, every=1, rules=rules) as w:  # type: ignore[arg-type]
        for _ in range(steps):
            optimizer.zero_grad()
            step().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        record = w.latest
    assert record is not None
    return record, w.alerts


def entropy(shares: Tensor) -> float:
    some = shares[shares > 0].double()
    return float(-(some * some.log()).sum())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_codes_of_a_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Quantiser(dtype=dtype), torch.randn(50, 4)
    expected = torch.bincount(model(x)[1], minlength=6) / 50
    record, _ = trained(model, lambda: model(x)[0].square().mean())
    found = record["", "choices[1]"]
    assert found.mean.tolist() == pytest.approx(expected.tolist())
    assert found.count.tolist() == [1] * 6
    assert record.scalars["load_entropy/"] == pytest.approx(entropy(expected))


def test_only_integers_that_a_codebook_has_are_choices() -> None:
    class Counted(Quantiser):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out, chosen = super().forward(x)
            return out, torch.where(chosen > 2, chosen, 1000)

    torch.manual_seed(0)
    model, x = Counted(), torch.randn(50, 4)
    expected = torch.bincount(Quantiser.forward(model, x)[1], minlength=6) / 50
    expected[:3] = 0
    record, _ = trained(model, lambda: model(x)[0].square().mean())
    assert record["", "choices[1]"].mean.tolist() == pytest.approx(expected.tolist())
    plain = nn.Sequential(nn.Linear(4, 4))
    record, _ = trained(plain, lambda: plain(x).square().mean())
    assert not [kind for _, kind in record if kind.startswith("choices")]


def test_codes_that_are_never_chosen_are_a_note() -> None:
    torch.manual_seed(0)
    model, x = Quantiser(), torch.randn(50, 4)
    model.book[2] = 1e3  # type: ignore[index,operator]
    unused = (torch.bincount(model(x)[1], minlength=6) == 0).nonzero().flatten().tolist()
    _, alerts = trained(model, lambda: model(x)[0].square().mean(), 55, DeadChannels())
    (alert,) = alerts
    assert (alert.severity, alert.kind, alert.step, alert.since) == ("note", "choices[1]", 49, 0)
    assert alert.channel == unused[0]
    assert (alert.value, len(unused) < 6) == (len(unused) / 6, True)
    assert f"have left out {len(unused)} of 6 values" in alert.message
    assert trained(model, lambda: model(x)[0].square().mean(), 45, DeadChannels())[1] == ()


def test_experts_of_a_switch_layer() -> None:
    torch.manual_seed(0)
    model, x = Switch(), torch.randn(60, 4)
    logits = model.router(x).detach()
    shares = torch.bincount(logits.argmax(1), minlength=3) / 60
    tokens = sum(entropy(row) for row in logits.softmax(-1)) / 60
    record, _ = trained(model, lambda: model(x).square().mean())
    assert record.scalars["load_entropy/experts"] == pytest.approx(entropy(shares))
    assert record.scalars["router_entropy/router"] == pytest.approx(tokens, rel=1e-5)


@pytest.mark.parametrize("experts", [3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_entropy_of_logits_and_of_probabilities(experts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    row = torch.randn(experts).to(dtype)
    given = row.expand(2, 100, experts)  # of 700 experts more than is read, and all alike
    expected = entropy(row.double().softmax(-1))
    assert entropy_of(entropies(given)) == pytest.approx(expected, rel=1e-5)
    shares = row.double().softmax(-1).to(dtype)
    found = entropy_of(entropies(shares.expand(2, 100, experts)))
    assert found == pytest.approx(entropy(shares.double()), rel=1e-5)
    sure = nn.functional.one_hot(torch.arange(4) % 3, experts).to(dtype)
    assert entropy_of(entropies(sure)) == 0.0


@pytest.mark.parametrize("name", ["experts", "branches"])
def test_what_runs_tells_that_modules_are_experts(name: str) -> None:
    torch.manual_seed(0)
    model, x = Switch(2, name), torch.randn(60, 4)
    record, alerts = trained(model, lambda: model(x).square().mean(), 52, Untrained())
    assert 0 < record.scalars[f"load_entropy/{name}"] <= math.log(2)
    (alert,) = (alert for alert in alerts if alert.kind == "output")
    assert (alert.site, alert.severity) == (f"{name}.2", "warning")


def test_layers_that_all_run_alike_are_no_experts() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            out: Tensor = self.head(x)
            return out

    model = Stack()
    record, _ = trained(model, lambda: model(torch.randn(5, 4)).square().mean(), 3)
    assert not [name for name in record.scalars if "entropy" in name]


@pytest.mark.check
def test_experts_of_mixtral() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(vocab_size=64, **sizes, **heads, **experts)
    model, x = transformers.MixtralForCausalLM(config), torch.randint(64, (4, 16))
    logits = model(x, output_router_logits=True).router_logits
    record, _ = trained(model, lambda: model(x, labels=x).loss)
    for i, each in enumerate(logits):
        name = f"model.layers.{i}.mlp.gate"
        expected = torch.bincount(each.topk(2, -1).indices.flatten(), minlength=4) / 128
        assert record[name, "choices[2]"].mean.tolist() == pytest.approx(expected.tolist())
        assert record.scalars[f"load_entropy/{name}"] == pytest.approx(entropy(expected))
        tokens = sum(entropy(row) for row in each.detach().softmax(-1)) / 64
        assert record.scalars[f"router_entropy/{name}"] == pytest.approx(tokens, rel=1e-4)
