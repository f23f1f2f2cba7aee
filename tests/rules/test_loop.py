"""What a training loop does with gradients, optimizers and modes, each fault beside its mending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import SGD, Optimizer

from hookstats.rules import Accumulation, Alert, Loop, Loss, Mode
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch

Iteration = Callable[[nn.Module, Optimizer, Watch], object]


def network(bias: bool = False, *more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=bias), *more, nn.ReLU(), nn.Linear(8, 3, bias=bias))


def loss_of(model: nn.Module, samples: int = 12) -> Tensor:
    return nn.functional.cross_entropy(model(torch.randn(samples, 6)), torch.arange(samples) % 3)


def iterations(
    zero: str = "first",
    set_to_none: bool = True,
    backwards: int = 1,
    clip: bool = False,
    steps: int = 1,
    samples: int = 12,
) -> Iteration:
    """One iteration of a loop that zeroes gradients first, before the backward, or last."""

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        if zero == "first":
            optimizer.zero_grad(set_to_none)
        for _ in range(backwards):
            loss = loss_of(model, samples)
            w.log(loss=loss)
            if zero == "before":
                optimizer.zero_grad(set_to_none)
            loss.backward()  # type: ignore[no-untyped-call]
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if zero == "late":
            optimizer.zero_grad(set_to_none)
        for _ in range(steps):
            optimizer.step()
        if zero == "last":
            optimizer.zero_grad(set_to_none)

    return iterate


def said(
    iterate: Iteration,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    steps: int = 12,
) -> list[Alert]:
    torch.manual_seed(0)
    model = network() if model is None else model
    optimizer = SGD(model.parameters(), 0.01) if optimizer is None else optimizer
    rules = [rule(action=lambda alert: None) for rule in (Loop, Mode, Accumulation)]
    with watch(model, optimizer, rules=rules) as w:
        for _ in range(steps):
            iterate(model, optimizer, w)
    assert w.coverage().failures == {}
    assert all(p._backward_hooks in (None, {}) for p in model.parameters())
    return list(w.alerts)


@pytest.mark.parametrize(("set_to_none", "clip"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    ("zero", "backwards"), [("first", 1), ("first", 3), ("before", 1), ("last", 1), ("last", 3)]
)
def test_gradients_that_are_zeroed(
    zero: str, set_to_none: bool, backwards: int, clip: bool
) -> None:
    assert said(iterations(zero, set_to_none, backwards, clip)) == []


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("backwards", [1, 3])
def test_gradients_that_are_never_zeroed_in_a_model_without_biases(
    backwards: int, clip: bool
) -> None:
    (alert,) = said(iterations("never", backwards=backwards, clip=clip))
    assert (alert.rule, alert.step, alert.site) == ("accumulation", 4, "2.weight")
    assert "gradients are not zeroed" in alert.message


def test_gradients_zeroed_between_backward_and_step() -> None:
    (alert,) = said(iterations("late"))
    assert (alert.rule, alert.step, alert.severity) == ("loop", 2, "error")
    assert (alert.site, alert.kind) == ("0.weight", "param_grad")
    assert "and so are all 2 of its gradients" in alert.message
    assert "not between backward and step" in alert.advice


def test_an_optimizer_of_another_model() -> None:
    other = network()
    (alert,) = said(iterations(), optimizer=SGD(other.parameters(), 0.01))
    assert (alert.rule, alert.step, alert.severity) == ("loop", 2, "error")
    assert "are those of another model" in alert.message


def test_an_optimizer_of_copies_that_have_gradients_is_none_of_another_model() -> None:
    model, copies = network(), network()

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        model.zero_grad()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        for ours, theirs in zip(model.parameters(), copies.parameters(), strict=True):
            theirs.grad = ours.grad
        optimizer.step()

    assert said(iterate, model, SGD(copies.parameters(), 0.01)) == []


def test_two_steps_for_one_backward() -> None:
    (alert,) = said(iterations(steps=2))
    assert (alert.rule, alert.kind) == ("loop", "param_grad")
    assert "the optimizer steps twice for one backward" in alert.message


def test_several_optimizers_step_once_each_for_one_backward() -> None:
    model = network()
    several = [SGD(layer.parameters(), 0.01) for layer in (model[0], model[2])]
    with watch(model, several, rules=Loop(action=lambda alert: None)) as w:
        for _ in range(8):
            for optimizer in several:
                optimizer.zero_grad()
            loss_of(model).backward()  # type: ignore[no-untyped-call]
            for optimizer in several:
                optimizer.step()
    assert w.alerts == ()


def test_a_closure_makes_its_own_gradients() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        optimizer.step(closure)  # type: ignore[arg-type]

    assert said(iterate, model, optimizer) == []


def test_many_backwards_before_a_step_are_no_fault() -> None:
    assert said(iterations(backwards=20), steps=4) == []


def clip_in_place(model: nn.Module, step: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def replace_data(model: nn.Module, step: int) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clamp(-0.1, 0.1)


def load_in_mid_run(model: nn.Module, step: int) -> None:
    if step == 5:
        model.load_state_dict(network().state_dict())


def between_steps(write: Callable[[nn.Module, int], None]) -> Iteration:
    """An iteration of a sound loop, after which `write` gets the model and the step's number."""
    steps = count()

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        iterations()(model, optimizer, w)
        write(model, next(steps))

    return iterate


@pytest.mark.parametrize(
    ("write", "step"), [(clip_in_place, 1), (replace_data, 1), (load_in_mid_run, 6)]
)
def test_writes_between_steps_are_a_note(
    write: Callable[[nn.Module, int], None], step: int
) -> None:
    (alert,) = said(between_steps(write))
    assert (alert.rule, alert.severity, alert.step) == ("loop", "note", step)
    assert (alert.site, alert.kind, alert.value) == ("0.weight", "param", 2.0)
    assert alert.message.endswith("not by its optimizer, and so is '2.weight'")


def test_a_write_to_some_of_many_names_a_few() -> None:
    model = nn.Sequential(*[network() if i == 0 else nn.Linear(3, 3) for i in range(4)])

    def write(model: nn.Module, step: int) -> None:
        clip_in_place(model[1:], step)  # type: ignore[index]

    (alert,) = said(between_steps(write), model)
    assert (alert.site, alert.value) == ("1.weight", 6.0)
    assert alert.message.endswith("and so are '1.bias', '2.weight' and 3 more")


def sound_writes() -> Iterator[tuple[nn.Module, Iteration]]:
    frozen = nn.Linear(6, 6)
    frozen.requires_grad_(False)

    def average(model: nn.Module, step: int) -> None:
        with torch.no_grad():
            frozen.weight.lerp_(model[1].weight, 0.1)  # type: ignore[union-attr, index]

    model = nn.Sequential(frozen, nn.Linear(6, 6), network())
    yield pytest.param(model, between_steps(average), id="an average beside it")
    pruned = network()
    prune.random_unstructured(pruned[0], "weight", amount=0.5)  # type: ignore[no-untyped-call, index]
    yield pytest.param(pruned, iterations(), id="pruned")
    normed = network()
    nn.utils.parametrizations.spectral_norm(normed[0])  # type: ignore[index]
    yield pytest.param(normed, iterations(), id="spectral norm")


@pytest.mark.parametrize(("model", "iterate"), list(sound_writes()))
def test_what_modules_do_to_their_weights_is_no_write(model: nn.Module, iterate: Iteration) -> None:
    assert said(iterate, model) == []


def test_an_embedding_that_rescales_its_rows_is_no_write() -> None:
    model = nn.Sequential(nn.Embedding(5, 6, max_norm=0.5), network())

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.arange(5)), torch.arange(5) % 3).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    assert said(iterate, model) == []


def test_a_loss_that_does_not_fall_names_writes_before_each_step() -> None:
    def undo(model: nn.Module, step: int) -> None:
        with torch.no_grad():
            for parameter, was in zip(model.parameters(), begun, strict=True):
                parameter.copy_(was)

    torch.manual_seed(0)
    model = network()
    begun = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = torch.randn(12, 6), torch.arange(12) % 3

    optimizer = SGD(model.parameters(), 0.01)
    with watch(model, optimizer, rules=[Loop(), Loss()]) as w:
        for step in range(61):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            w.log(loss=loss)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            undo(model, step)
    (alert,) = (alert for alert in w.alerts if alert.rule == "loss")
    assert "suspect: weights that something else than their optimizer writes to" in alert.message


def modes() -> Iterator[tuple[nn.Module, str]]:
    yield network(False, nn.Dropout(0.1)), "1"
    yield network(False, nn.BatchNorm1d(8)), "1"


@pytest.mark.parametrize(("model", "name"), list(modes()))
def test_training_in_eval_mode(model: nn.Module, name: str) -> None:
    assert said(iterations(), model.train()) == []
    (alert,) = said(iterations(), model.eval())
    assert (alert.rule, alert.site, alert.kind, alert.step) == ("mode", name, "output", 1)


def test_eval_mode_that_is_left_on() -> None:
    steps = count()

    def iterate(model: nn.Module, optimizer: Optimizer, w: Watch) -> None:
        step = next(steps)
        if step == 3:  # a validation
            model.eval()
            with torch.no_grad():
                loss_of(model)
            model.train()
        if step == 6:
            model.eval()
        iterations()(model, optimizer, w)

    (alert,) = said(iterate, network(False, nn.Dropout(0.1)))
    assert alert.step == 7


def test_frozen_parts_may_be_in_eval_mode() -> None:
    model = network(False, nn.BatchNorm1d(8), nn.Dropout(0.1))
    model[1].requires_grad_(False).eval()  # type: ignore[operator]
    assert said(iterations(), model) == []
    model[2].p = 0.0
    assert said(iterations(), model) == []


def test_a_batch_norm_of_two_values() -> None:
    model = network(False, nn.BatchNorm1d(8))
    (alert,) = said(iterations(samples=2), model)
    assert (alert.rule, alert.site, alert.value) == ("mode", "1", 2.0)
    assert said(iterations(samples=8), network(False, nn.BatchNorm1d(8))) == []
