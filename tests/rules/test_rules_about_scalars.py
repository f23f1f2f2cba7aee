"""The rules about numbers that training logs, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import pytest
import torch
from support.modules import take_step
from support.samples import record_of
from torch import nn

from hookstats.rules import (
    Alert,
    Clipping,
    LearningRate,
    Loss,
    Monitor,
    NonFinite,
    Rule,
    Setup,
    UpdateSize,
    WeightDecay,
)
from hookstats.rules.setup import Group
from hookstats.watching.handle import Watch
from hookstats.watching.watch import watch


def of_scalars(
    rule: Rule,
    values: Iterable[float],
    name: str = "loss",
    setup: Setup | None = None,
    batches: Mapping[int, int] | None = None,
) -> list[Alert]:
    """What a rule says of a number, step by step; batches: of recorded steps, by step."""
    monitor = Monitor([rule], setup)
    for step, value in enumerate(values):
        if batches is None or step in batches:
            x = torch.zeros(64 if batches is None else batches[step], 2)
            monitor.examine(record_of({("", "input"): (x, 1)}, step=step))
        monitor.examine_scalars(step, {name: value})
    assert monitor.failures == {}
    return monitor.alerts


def falling(n: int = 40, noise: float = 0.05) -> list[float]:
    """The losses of a sound run."""
    generator = torch.Generator().manual_seed(0)
    jitter = torch.randn(n, generator=generator).mul(noise).tolist()
    return [2.0 * 0.95**step + more for step, more in enumerate(jitter)]


def test_a_loss_that_falls_is_no_news() -> None:
    assert of_scalars(Loss(), falling()) == []
    assert of_scalars(Loss(), falling(noise=0.3)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_an_error(value: float) -> None:
    (alert,) = of_scalars(Loss(), [1.0, 1.0, value, value])
    assert (alert.step, alert.severity, alert.kind) == (2, "error", "scalar")
    assert alert.message == f"loss: step 2: loss is {value}"


def test_a_loss_that_leaps() -> None:
    losses = falling(60)
    losses[50] += 4.0  # worse than at the start
    (alert,) = of_scalars(Loss(), losses)
    assert (alert.step, alert.severity) == (50, "warning")
    assert "leaps to" in alert.message
    assert of_scalars(Loss(), losses, "val/loss") == []
    assert of_scalars(Loss(), losses, "accuracy") == []
    losses[50] -= 2.5  # one batch that is hard, beside what was learned
    assert of_scalars(Loss(), losses) == []
    losses[51:53] = [losses[50]] * 2  # several are another thing
    (alert,) = of_scalars(Loss(), losses)
    assert alert.step == 52


@pytest.mark.parametrize("is_entropy", [False, True])
def test_a_loss_that_begins_anew(is_entropy: bool) -> None:
    """As in Q-learning, whose targets another network makes, which is exchanged now and then."""
    monitor = Monitor([Loss()])
    gradients = torch.randn(64, 4)
    if is_entropy:
        gradients -= gradients.mean(1, keepdim=True)
    for step, loss in enumerate([1 - 0.013 * n for n in range(50)] + [0.98, 0.97, 0.96]):
        tensors = {("q", "output"): (torch.randn(64, 4), 1), ("q", "grad_output"): (gradients, 1)}
        monitor.examine(record_of(tensors, step=step))
        monitor.examine_scalars(step, {"loss": loss})
    (alert,) = monitor.alerts
    assert (alert.step, alert.severity) == (52, "warning" if is_entropy else "note")
    assert ("target network" in alert.advice) is not is_entropy


def test_the_last_batch_of_an_epoch_leaps_alone() -> None:
    """As under a batch norm that has few samples."""
    losses, usual = falling(60), dict.fromkeys(range(60), 64)
    losses[50] += 4.0
    assert len(of_scalars(Loss(), losses, batches=usual)) == 1
    for batches in (usual | {50: 5}, dict.fromkeys(range(50), 64)):  # a small one; nobody knows
        (alert,) = of_scalars(Loss(), losses, batches=batches)
        assert (alert.step, alert.severity) == (50, "note")
    losses[51:53] = [losses[50]] * 2
    found = of_scalars(Loss(), losses, batches=usual | {50: 5})
    assert "warning" in [alert.severity for alert in found]


def test_a_hard_batch_of_a_fitted_model_is_no_leap() -> None:
    losses = [2.3 * 0.9**step + 0.01 * (1 + step % 3) for step in range(200)]
    losses[150] = 0.3  # twenty times the median
    assert of_scalars(Loss(), losses) == []


def test_the_end_of_a_plateau_leaps_alone() -> None:
    """A net that begins to learn takes large steps, some of them too large, and recovers."""
    losses = [2.3 + 0.002 * (step % 3) for step in range(60)] + [2.3 - 0.02 * n for n in range(10)]
    losses.append(3.8)
    (alert,) = of_scalars(Loss(first=300), [*losses, 2.1, 2.0])
    assert (alert.step, alert.severity) == (70, "note")
    found = of_scalars(Loss(first=300), [*losses, 3.8, 3.8])
    assert [alert.severity for alert in found] == ["note", "warning"]


def test_a_loss_that_rises_a_little_as_its_plateau_ends() -> None:
    """As that of spiking neurons, none of which fires at first."""
    losses = [0.1 + 1e-5 * (step % 3) for step in range(50)]
    losses += [0.097, 0.096, 0.094, 0.099, 0.098] * 2
    assert of_scalars(Loss(first=300), [*losses, 0.104, 0.107, 0.111, 0.109, 0.09]) == []
    found = of_scalars(Loss(first=300), [*losses, 0.15, 0.16, 0.17])
    assert [alert.severity for alert in found] == ["note", "warning"]


@pytest.mark.check
def test_a_loss_that_is_noise_does_not_leap_or_climb() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(600, generator=generator).mul(0.1).tolist()
    assert [a for a in of_scalars(Loss(), noise) if a.level] == []  # normalised advantages


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("train_loss", "train/loss", "train_loss_step", "loss/train")),
        *((name, False) for name in ("val_loss", "validation_loss", "eval/loss", "loss/test")),
        *((name, False) for name in ("loss_scale", "loss_weight", "lossless", "dev_loss_step")),
    ],
)
def test_which_numbers_are_losses_of_the_training(name: str, is_one: bool) -> None:
    losses = falling(60)
    losses[50] += 4.0
    assert len(of_scalars(Loss(), losses, name)) == is_one


def of_a_classifier(
    losses: Iterable[float], more: Callable[[int], dict[str, float]] = lambda step: {}
) -> list[Alert]:
    """What the rule says of the losses of a classifier of ten classes; more: other numbers."""
    monitor = Monitor([Loss()], interval=0)
    record = record_of({("head", "output"): (torch.ones(8, 10), 1)}, 0)
    monitor.examine(record)
    for step, loss in enumerate(losses, 1):
        monitor.examine_scalars(step, {"loss": loss} | more(step))
    assert monitor.failures == {}
    return monitor.alerts


def wave(middle: float, steps: int) -> list[float]:
    """Values around one."""
    return [middle * (1 + 0.01 * math.sin(7 * step)) for step in range(steps)]


def test_a_loss_that_climbs() -> None:
    (alert,) = of_a_classifier([2.3 * 1.03**step for step in range(40)])
    assert "climbs" in alert.message
    # Of other losses nobody knows what an untrained model has: those of a Q function grow.
    assert of_scalars(Loss(), [0.1 * 1.03**step for step in range(55)]) == []
    (alert,) = of_scalars(Loss(), [0.1 * 1.3**step for step in range(40)])
    assert "climbs" in alert.message


def test_a_loss_that_does_not_fall_is_a_note_until_it_had_hundreds_of_steps() -> None:
    notes = of_a_classifier(wave(math.log(10), 200))
    assert [(alert.step, alert.severity) for alert in notes] == [(60, "note")]
    found = of_a_classifier(wave(math.log(10), 400))
    assert [(alert.step, alert.severity) for alert in found] == [(60, "note"), (300, "warning")]
    assert "no better than a guess among 10 classes" in found[1].message
    # Whether this is all that can be learned, nobody knows.
    assert {alert.severity for alert in of_scalars(Loss(), wave(1.7, 400))} == {"note"}


@pytest.mark.parametrize(
    ("norms", "said"),
    [
        (lambda step: 1.0, [60, 300]),
        (lambda step: 1.01**step, []),  # training is about to leave the plateau
        (lambda step: math.nan, [60, 300]),
    ],
)
def test_a_plateau_whose_gradients_grow(norms: Callable[[int], float], said: list[int]) -> None:
    found = of_a_classifier(
        wave(math.log(10), 310),
        lambda step: {"grad_norm": norms(step) * (1 + 0.1 * math.sin(5 * step))},
    )
    assert [alert.step for alert in found] == said


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("g_loss", "d_loss"), []),  # of two players, none need fall
        (("loss", "aux_loss"), ["loss"]),
        (("train/loss_step", "kl_loss"), ["train/loss_step"]),
        (("mse_loss",), ["mse_loss"]),
    ],
)
def test_which_losses_have_to_fall(names: tuple[str, ...], found: list[str]) -> None:
    monitor = Monitor([Loss()])
    for step in range(70):
        monitor.examine_scalars(step, dict.fromkeys(names, 2.3 + 0.05 * (-1) ** step))
    assert [alert.site for alert in monitor.alerts] == found
    monitor.examine_scalars(70, dict.fromkeys(names, math.nan))
    assert [alert.site for alert in monitor.alerts[len(found) :]] == list(names)


def of_players(
    critic: Callable[[int], float],
    maker: Callable[[int], float],
    names: tuple[str, str] = ("d_loss", "g_loss"),
) -> list[tuple[int, str]]:
    """What is said of the losses of two players: steps and severities."""
    monitor = Monitor([Loss()])
    for step in range(340):
        monitor.examine_scalars(step, {names[0]: critic(step), names[1]: maker(step)})
    assert monitor.failures == {}
    return [(alert.step, alert.severity) for alert in monitor.alerts]


@pytest.mark.parametrize("names", [("d_loss", "g_loss"), ("Loss_D", "Loss_G"), ("errD", "errG")])
def test_a_discriminator_that_wins(names: tuple[str, str]) -> None:
    def won(step: int) -> float:
        return 1.4 * 0.8**step

    # 1.4 * 0.8**step is a hundredth of the median of the first 8 from step 25 on.
    assert of_players(won, lambda step: 0.7 + step, names) == [(84, "note"), (324, "warning")]
    assert of_players(won, lambda step: 2.0 - 0.01 * step, names) == []  # both learn
    again = of_players(lambda step: 1.0 if step % 40 == 0 else won(step), lambda step: 5.0, names)
    assert again == []


@pytest.mark.parametrize("names", [("critic_loss", "actor_loss"), ("depth_loss", "g_loss")])
def test_losses_of_others_may_fall(names: tuple[str, str]) -> None:
    assert of_players(lambda step: 0.8**step, lambda step: 1.0, names) == []
    assert of_players(lambda step: -5.0 - step, lambda step: 1.0) == []  # Wasserstein


def test_a_loss_in_a_warm_up_need_not_fall() -> None:
    monitor = Monitor([Loss()])
    for step in range(80):
        monitor.examine_scalars(step, {"lr/0": 1e-6 * step, "loss": 2.3})
    assert monitor.alerts == []


def test_a_learning_rate_that_jumps() -> None:
    rates = [0.1] * 12
    assert [a.step for a in of_scalars(LearningRate(), [*rates, 1.0], "lr/0")] == [12]
    assert of_scalars(LearningRate(), [*rates, 0.0, 0.1], "lr/0") == []  # touches zero
    assert [a.step for a in of_scalars(LearningRate(), [*rates, 0.0, 0.0, 0.0], "lr/0")] == [14]
    assert of_scalars(LearningRate(), [*rates, 0.01], "lr/0") == []  # a schedule
    assert of_scalars(LearningRate(), [1e-6 * (step + 1) for step in range(20)], "lr/0") == []
    cosine = [0.05 * (1 + math.cos(math.pi * step / 50)) for step in range(51)]
    assert of_scalars(LearningRate(), cosine, "lr/0") == []
    assert of_scalars(LearningRate(), 3 * cosine[:-1], "lr/0") == []  # warm restarts
    assert [a.step for a in of_scalars(LearningRate(), [*cosine[:-1], 0.5], "lr/0")] == [50]


@pytest.mark.parametrize(
    ("algorithm", "decay", "found"), [("AdamW", 50.0, 1), ("AdamW", 0.1, 0), ("Adam", 50.0, 0)]
)
def test_a_weight_decay_that_shrinks_the_weights_away(
    algorithm: str, decay: float, found: int
) -> None:
    setup = Setup({}, (), (Group(algorithm, 0.0, decay),))
    alerts = of_scalars(WeightDecay(), [1e-3] * 3, "lr/0", setup)
    assert len(alerts) == found


def test_gradients_that_are_no_longer_clipped() -> None:
    clipped = [1.0, 0.7] * 12
    (alert,) = of_scalars(Clipping(), [*clipped, 3.0], "grad_norm")
    assert alert.step == 24
    assert of_scalars(Clipping(), [*clipped, 1.0], "grad_norm") == []
    free = [1.0 + 0.01 * step for step in range(24)]
    assert of_scalars(Clipping(), [*free, 3.0], "grad_norm") == []


def scaled(model: nn.Module, broken: int, micro_batches: int = 1, steps: int = 20) -> Watch:
    """Trains in fp16 with a loss scaler; the weights are huge from the step `broken` on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with watch(model, optimizer, rules=NonFinite(action=print)) as w:
        for step in range(steps):
            if step == broken:
                with torch.no_grad():
                    model[1].weight.mul_(1e7)  # type: ignore[index,operator]
            for _ in range(micro_batches):
                with torch.autocast("cpu", torch.float16):
                    loss = model(torch.randn(8, 6)).square().mean()
                w.log(loss=loss)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return w


@pytest.mark.parametrize(("broken", "steps"), [(12, 18), (0, 36)])
def test_a_layer_that_overflows_is_named_though_the_scaler_skips_each_step(
    broken: int, steps: int
) -> None:
    w = scaled(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), broken, steps=steps)
    found = [(alert.rule, alert.step, alert.site) for alert in w.alerts if alert.level == 2]
    assert found == [("non-finite", broken, "1")]


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_steps_in_fp16_are_closed_by_the_optimizer_alone(micro_batches: int) -> None:
    w = scaled(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), -1, micro_batches)
    assert (w.latest.step, w.alerts) == (19, ())


@pytest.mark.parametrize(
    ("rate", "begins", "found"), [(1.0, 1.0, 1), (0.01, 1.0, 0), (1.0, 0.01, 0)]
)
def test_the_learning_rate_of_one_group_is_far_too_large(
    rate: float, begins: float, found: int
) -> None:
    """As large a step is right for a head that begins next to zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4))
    with torch.no_grad():
        model[3].weight *= begins
    groups = [
        {"params": [*model[0].parameters(), *model[2].parameters()]},
        {"params": model[3].parameters(), "lr": rate},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    with watch(model, optimizer, every=1, rules=UpdateSize(action=lambda alert: None)) as w:
        for _ in range(6):
            take_step(optimizer, model(torch.randn(16, 8)).square().mean())
    assert [(alert.step, alert.site) for alert in w.alerts] == [(2, "3.weight")] * found
    if found:
        assert "by the learning rate of group 1" in w.alerts[0].message
