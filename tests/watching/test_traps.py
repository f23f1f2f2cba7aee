"""Calls that are likely, and wrong: each works as it is meant, or says the right call in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR

import hookstats as hs
from hookstats.records.keys import label


class Block(nn.Module):
    """Names that are globs, and a layer of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleDict({"conv[3x3]": nn.Linear(4, 4), "conv3": nn.Linear(4, 4)})
        self.enc = nn.Linear(4, 4)
        self.dec = self.enc

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.convs.values():
            x = layer(x)
        return self.dec(self.enc(x))


@pytest.fixture
def model() -> nn.Module:
    return Block()


@pytest.fixture
def optimizer(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), 0.1)


def train(model: nn.Module, optimizer: Optimizer) -> None:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


Call = Callable[[nn.Module, Optimizer], Any]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, o: hs.watch(m, o, log_freq=10), r"no argument 'log_freq'; expected every=100"),
        (lambda m, o: hs.watch(m, o, dir="a"), r"no argument 'dir'; expected out=\"runs/a\""),
        (lambda m, o: hs.watch(m, o, log="all"), r"no argument 'log'; expected kinds="),
        (lambda m, o: hs.watch(m, o, actions=[print]), r"expected rules=\[\"default\", action\]"),
        (lambda m, o: hs.watch(m, o, evry=10), r"no argument 'evry'; did you mean 'every'"),
        (lambda m, o: hs.watch(m, o, loss=1), r"log it at each step: watch.log\(loss=loss\)"),
        (
            lambda m, o: hs.watch(m, o, "runs/a"),
            r"model and optimizer by position.* out='runs/a'",
        ),
        (lambda m, o: hs.watch(m, o, 100), "such as every=100"),
    ],
)
def test_an_argument_of_another_name(
    model: nn.Module, optimizer: Optimizer, call: Call, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        call(model, optimizer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, o: hs.watch(o, m), r"model has a SGD: .* as in watch\(model, optimizer\)"),
        (lambda m, o: hs.watch(o), r"model has a SGD: .* as in watch\(model, optimizer\)"),
        (lambda m, o: hs.watch(StepLR(o, 1)), r"StepLR.* as in watch\(model, optimizer\)"),
        (lambda m, o: hs.watch(m.parameters()), r"as in watch\(model, optimizer\)"),
        (lambda m, o: hs.watch(Block), r"Block.* as in watch\(model, optimizer\)"),
        (lambda m, o: hs.watch(m, SGD), r"did you mean what it returns\?"),
        (lambda m, o: hs.watch(m, m.parameters()), "optimizer that has these parameters"),
        (lambda m, o: hs.watch(m, list(m.parameters())), "optimizer that has these parameters"),
        (lambda m, o: hs.watch(m, o.param_groups), "optimizer that has these parameters"),
        (lambda m, o: hs.watch(torch.eye(9), o), "model has a Tensor: expected a torch.nn.Module"),
        (lambda m, o: hs.trace(m, torch.eye(4), backward=lambda y: (y, y)), "expected the loss"),
        (lambda m, o: hs.watch(m, "runs/a"), r"did you mean out='runs/a'\?"),
        (lambda m, o: hs.watch(m, m), r"watch\(\[model, other\], optimizer\)"),
        (lambda m, o: hs.watch(m, o, kinds="output"), r"did you mean \('output',\)\?"),
        (lambda m, o: hs.watch(m, o, kinds="gradients"), r"did you mean \('param_grad',\)\?"),
        (lambda m, o: hs.watch(m, o, kinds=["activations"]), "did you mean 'output'"),
        (lambda m, o: hs.watch(m, o, kinds=["weights"]), "did you mean 'param'"),
        (lambda m, o: hs.watch(m, o, kinds=["param_grads"]), "did you mean 'param_grad'"),
        (lambda m, o: hs.watch(m, o, bins=64), r"bins = 64: .* LinearBins\(64, lo=-4.0, hi=4.0\)"),
        (lambda m, o: hs.watch(m, o, max_bytes="10GB"), r"10 GB are 10 \* 10\*\*9"),
        (lambda m, o: hs.watch(m, o, rules=["nan"]), r"loss.*; did you mean 'non-finite'\?"),
        (lambda m, o: hs.watch(m, o, rules=["dead"]), "dead channels"),
    ],
)
def test_a_value_of_another_kind(
    model: nn.Module, optimizer: Optimizer, call: Call, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call(model, optimizer)
    assert "\n" not in str(caught.value)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_loss_is_logged_by_its_name(model: nn.Module, optimizer: Optimizer) -> None:
    with hs.watch(model, optimizer) as watch:
        loss = torch.tensor(1.0)
        untyped: Any = watch
        with pytest.raises(ValueError, match=r"expected log\(loss=\.\.\.\)"):
            untyped.log("loss", loss)
        with pytest.raises(ValueError, match=r"expected log\(accuracy=\.\.\.\)"):
            untyped.log("accuracy", 0.5)
        with pytest.raises(ValueError, match=r"expected log\(loss=\.\.\.\)"):
            untyped.log(loss)
        watch.log(loss=loss)


def test_a_scheduler_stands_for_its_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    with hs.watch(model, StepLR(optimizer, 1)) as watch:  # type: ignore[arg-type]
        train(model, optimizer)
        assert watch.latest.step == 0


@pytest.mark.parametrize("name", ["original_optimizer", "_sgd"])
def test_an_optimizer_that_wraps_another_and_has_no_hooks(model: nn.Module, name: str) -> None:
    class Private(Optimizer):
        """As the DPOptimizer of Opacus: an Optimizer that never called its `__init__`."""

        def __init__(self, original: Optimizer) -> None:
            setattr(self, name, original)

        def step(self, closure: Any = None) -> None:
            getattr(self, name).step()

        @property
        def param_groups(self) -> Any:
            return getattr(self, name).param_groups

        def __repr__(self) -> str:
            return "Private"

    optimizer = Private(SGD(model.parameters(), 0.1))
    with hs.watch(model, optimizer) as watch:
        train(model, optimizer)
        assert watch.latest.step == 0


@pytest.mark.parametrize(
    ("include", "sites"),
    [
        ("convs.conv[3x3]", ["convs.conv[3x3]"]),
        ("convs.conv[3]", ["convs.conv3"]),
        ("dec", ["enc"]),
        (["dec", "convs.conv3"], ["convs.conv3", "enc"]),
        ("dec.weight", []),
    ],
)
def test_a_name_comes_before_a_glob(model: nn.Module, include: Any, sites: list[str]) -> None:
    watch = hs.watch(model, include=include)
    names = {row.name for row in watch.coverage().rows}
    assert sorted({name.removesuffix(".weight").removesuffix(".bias") for name in names}) == (
        sites or ["enc"]
    )
    assert names == {"enc.weight"} or "enc.weight" not in names or "enc" in names
    watch.close()


def test_what_is_excluded_by_its_other_name(model: nn.Module) -> None:
    with hs.watch(model, exclude="dec") as watch:
        assert not any(row.name.startswith("enc") for row in watch.coverage().rows)


def test_a_directory_of_runs_lists_them(
    model: nn.Module, optimizer: Optimizer, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        with hs.watch(model, optimizer, out=tmp_path / "runs" / name):
            train(model, optimizer)
    names = ", ".join(repr(str(tmp_path / "runs" / name)) for name in ("a", "b"))
    with pytest.raises(ValueError, match="expected a run directory") as caught:
        hs.open_run(tmp_path / "runs")
    assert str(caught.value).endswith(f"runs in it: {names}")


def test_a_rule_without_a_name_has_that_of_its_class(
    model: nn.Module, optimizer: Optimizer
) -> None:
    class LargeUpdate(hs.rules.Rule):
        def check(self, record: Any, history: Any) -> Any:
            yield self.alert(record, 0, "is here", 1.0)

    class Larger(LargeUpdate):
        pass

    assert (LargeUpdate.name, Larger.name) == ("large update", "large update")
    with hs.watch(model, optimizer, rules=[LargeUpdate()]) as watch:
        train(model, optimizer)
        assert watch.alerts[0].message.startswith("large update: step 0: ")


def test_a_layer_in_the_place_of_a_step(
    model: nn.Module, optimizer: Optimizer, tmp_path: Path
) -> None:
    with hs.watch(model, optimizer, out=tmp_path / "run"):
        train(model, optimizer)
    untyped: Any = hs.open_run(tmp_path / "run")
    with pytest.raises(KeyError, match=r"'enc' is no step: run\['enc', 'output'\]"):
        untyped["enc"]


def test_names_in_brackets_are_shown_as_they_are() -> None:
    assert [label(name) for name in ("[/]", "[bold]x[/bold]", "@home", "")] == [
        *("[/]", "[bold]x[/bold]", "@home", "(root)")
    ]
    assert [label(name) for name in ("[64ch]", "@1", "[whole]")] == [
        *("(root)[64ch]", "(root)@1", "(root)[whole]")
    ]
