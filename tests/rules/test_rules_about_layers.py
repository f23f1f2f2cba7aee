"""The rules that compare layers, look at inputs, and know what training begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.alerts import alerts
from support.modules import take_step
from support.samples import record_of
from torch import Tensor, nn

from hookstats.records.record import StepRecord
from hookstats.rules import (
    Alert,
    Collapse,
    Depth,
    Initialisation,
    Inputs,
    Monitor,
    RepeatedInputs,
    Rounding,
    Rule,
    Underflow,
    Untrained,
    UpdateSize,
)
from hookstats.watching.watch import watch

Key = tuple[str, str]


def layers(sizes: list[float], kind: str = "output") -> dict[Key, Tensor]:
    """Layers "h.0.fc", "h.1.fc", ... with an rms each."""
    return {(f"h.{i}.fc", kind): size * torch.randn(64, 16) for i, size in enumerate(sizes)}


def test_a_signal_that_grows_with_depth() -> None:
    (alert,) = alerts(Depth(), [layers([1, 2, 4.5, 9])])
    assert (alert.site, alert.value > 3) == ("h.3.fc", True)
    (alert,) = alerts(Depth(), [layers([64, 16, 4, 1], "grad_output")])
    assert alert.site == "h.0.fc"  # gradients go backwards
    assert not alerts(Depth(), [layers([1, 2, 1, 9])])
    assert not alerts(Depth(), [layers([1, 1.2, 1.4, 1.6])])


def test_an_output_that_hardly_depends_on_the_sample() -> None:
    biases, head = torch.randn(16), torch.randn(64, 16)

    def of(found: Tensor) -> list[dict[Key, Tensor]]:
        return [{("a", "output"): found, ("head", "output"): head}] * 10

    little = biases + 1e-3 * torch.randn(64, 16)
    (alert,) = alerts(Collapse(), of(little))
    assert (alert.step, alert.since, alert.site) == (9, 0, "a")
    # What a later layer knows of the sample was not lost.
    beside = [{("a", "output"): little, ("b", "output"): head, ("head", "output"): head}] * 12
    assert not alerts(Collapse(), beside)
    assert not alerts(Collapse(), of(biases + 0.1 * torch.randn(64, 16)))
    # A constant is a choice, as of one code for all samples; behind what was lost, it is lost.
    constant = biases.expand(64, 16)
    for same in (constant, constant + 1e-7 * torch.randn(64, 16)):
        assert not alerts(Collapse(), of(same))
        behind = {("a", "output"): little, ("b", "output"): same, ("head", "output"): head}
        assert [found.site for found in alerts(Collapse(), [behind] * 10)] == ["a"]
    assert not alerts(Collapse(), [{("head", "output"): little}] * 12)  # heads may begin small


def batches(n: int) -> list[dict[Key, Tensor]]:
    """Inputs of a sound run."""
    return [{("", "input"): torch.randn(64, 16)} for _ in range(n)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: 30 * x, "differs from the steps before"),
        (lambda x: x + 4, "differs from the steps before"),
        (torch.zeros_like, "is 0 everywhere"),
        (lambda x: torch.where(torch.arange(16) < 8, 0.0, x), "differs from the steps before"),
    ],
)
def test_inputs_that_change(change: Callable[[Tensor], Tensor], says: str) -> None:
    steps = batches(21)
    steps[20] = {("", "input"): change(steps[20]["", "input"])}
    steps.append(steps[20])
    (alert,) = alerts(Inputs(), steps)
    assert alert.step in (20, 21)
    assert says in alert.message


def test_inputs_that_change_a_little_have_to_do_so_in_three_steps_in_a_row() -> None:
    steps = batches(24)
    for shifted, found in (([20], []), ([20, 21, 23], []), ([20, 21, 22], [(22, 20)])):
        records = [
            {key: x + 0.7 * (i in shifted) for key, x in s.items()} for i, s in enumerate(steps)
        ]
        assert [(alert.step, alert.since) for alert in alerts(Inputs(), records)] == found


def test_inputs_that_stay_elsewhere_for_long() -> None:
    """The row of steps that are far is longer than what is kept of the steps before."""
    records = [{("", "input"): torch.randn(64, 16) + 30.0 * (i >= 40)} for i in range(120)]
    (alert,) = alerts(Inputs(), records)
    assert (alert.step, alert.since) == (40, 40)


def test_inputs_that_do_not_change() -> None:
    assert not alerts(Inputs(), batches(30))


def test_inputs_that_are_not_normalised() -> None:
    (alert,) = alerts(Inputs(), [{("", "input"): 128 + 64 * torch.randn(64, 16)}])
    assert "is not normalised" in alert.message
    assert not alerts(Inputs(), [{("", "input"): torch.rand(64, 16)}])


def test_a_batch_of_one_sample() -> None:
    x = torch.randn(1, 16)
    same = {("", "input"): x.expand(8, 16), ("a", "output"): x.expand(8, 16)}
    assert not alerts(Inputs(), [*batches(3), same])  # a small batch may be of equal samples
    steps = [*batches(3), same, same]
    (alert,) = alerts(Inputs(), steps)
    assert "is the same for each sample" in alert.message


def test_a_batch_that_comes_again() -> None:
    steps = batches(40)
    (alert,) = alerts(RepeatedInputs(), [*steps, steps[39], steps[39]])
    assert (alert.step, alert.since, alert.severity) == (41, 40, "warning")
    assert not alerts(RepeatedInputs(), steps)
    # A training that learns from each batch several times does so from the start.
    assert not alerts(RepeatedInputs(), [batch for batch in steps for _ in range(3)])
    (alert,) = alerts(RepeatedInputs(), batches(1) * 10)
    assert alert.severity == "note"


def test_gradients_too_small_for_fp16() -> None:
    tiny = {("a", "grad_output"): (1e-7 * torch.randn(64, 8)).half()}
    (alert,) = alerts(Underflow(), [tiny] * 4)
    assert alert.step == 2
    assert not alerts(Underflow(), [{("a", "grad_output"): 1e-7 * torch.randn(64, 8)}] * 4)


# With a watch


def said(
    rule: Rule, change: Callable[[nn.Module], object], steps: int = 6, **kwargs: Any
) -> list[Alert]:
    """What the rule says of an MLP that is changed before it is trained."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)], nn.Linear(32, 4))
    left_out = change(model)
    parameters = [p for p in model.parameters() if p is not left_out]
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.1, **kwargs})
    with watch(model, optimizer, rules=rule) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, 32).to(next(model.parameters()).dtype)
            model(x).square().mean().backward()
            optimizer.step()
    assert w.coverage().failures == {}
    return list(w.alerts)


def scale(name: str, factor: float) -> Callable[[nn.Module], None]:
    """Multiply a parameter."""

    def change(model: nn.Module) -> None:
        model.get_parameter(name).data.mul_(factor)

    return change


def nothing(model: nn.Module) -> None:
    """Change nothing."""


def fill(name: str, value: float, rows: slice = slice(None)) -> Callable[[nn.Module], None]:
    """Set rows of a parameter."""

    def change(model: nn.Module) -> None:
        model.get_parameter(name).data[rows] = value

    return change


@pytest.mark.filterwarnings("ignore::hookstats.rules.RuleWarning")
@pytest.mark.parametrize(
    ("change", "site", "says"),
    [
        (scale("1.weight", 50), "1.weight", "gain of 28"),
        (scale("1.weight", 0.05), "1.weight", "gain of 0.02"),
        (scale("2.weight", 0), "2.weight", "zeros, unlike its peers"),
        (fill("3.weight", 0.1), "3.weight", "all values equal"),
        (fill("3.weight", 4.0, slice(8, 10)), "3.weight", "2 rows that are up to"),
        (fill("3.weight", 0.0, slice(8, 10)), "3.weight", "2 rows that are all zero"),
    ],
)
def test_initialisation(change: Callable[[nn.Module], None], site: str, says: str) -> None:
    (alert,) = said(Initialisation(), change)
    assert (alert.step, alert.site, alert.kind) == (0, site, "param")
    assert says in alert.message


def freeze(name: str) -> Callable[[nn.Module], None]:
    """Have a parameter require no gradient."""

    def change(model: nn.Module) -> None:
        model.get_parameter(name).requires_grad_(False)

    return change


def in_bf16(model: nn.Module) -> None:
    """Train in bf16."""
    model.bfloat16()


def test_sound_initialisation_and_training() -> None:
    rules = (Initialisation(), Untrained(), UpdateSize(), Rounding())
    assert [said(rule, nothing) for rule in rules] == [[], [], [], []]


@pytest.mark.filterwarnings("ignore::hookstats.rules.RuleWarning")
def test_parameters_that_nothing_trains() -> None:
    (alert,) = said(Untrained(), lambda model: model.get_parameter("2.weight"), 6)
    assert (alert.step, alert.site) == (4, "2.weight")
    assert "is in no optimizer" in alert.message
    (alert,) = said(Untrained(), freeze("2.weight"))
    assert (alert.site, alert.severity) == ("2.weight", "warning")
    (alert,) = said(Untrained(), freeze("0.weight"))
    assert (alert.site, alert.severity) == ("0.weight", "note")  # as in fine-tuning


@pytest.mark.filterwarnings("ignore::hookstats.rules.RuleWarning")
@pytest.mark.parametrize("every", [1, 2])
def test_a_gradient_that_comes_no_more(every: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every=every, rules=Untrained()) as w:
        for step in range(60):
            if step == 40:
                model[0].requires_grad_(False)
            take_step(optimizer, model(torch.randn(8, 4)).square().mean())
    (alert,) = w.alerts
    assert (alert.site, alert.kind, alert.since) == ("0.weight", "param_grad", 40)
    assert 42 <= alert.step <= 40 + 2 * every  # sooner where the next steps are all recorded
    assert "is missing (and 1 more): it came in each step before" in alert.message


def test_a_gradient_that_comes_no_more_has_the_next_steps_recorded() -> None:
    def step(number: int) -> StepRecord:
        values = {("a", "output"), ("b", "output"), ("b.weight", "param_grad")}
        if number < 20:
            values |= {("a.weight", "param_grad")}
        return record_of({key: (torch.ones(4, 4), 1) for key in sorted(values)}, number)

    monitor = Monitor(Untrained())
    urgent = []
    for number in range(23):
        monitor.examine(step(number))
        urgent.append(monitor.urgent)
    assert urgent == [0] * 20 + [1] * 3
    assert [alert.step for alert in monitor.alerts] == [22]


@pytest.mark.filterwarnings("ignore::hookstats.rules.RuleWarning")
def test_updates_that_are_too_large_too_small_or_rounded_away() -> None:
    assert "changes the weight by" in said(UpdateSize(), nothing, lr=1e4)[0].message
    assert said(UpdateSize(), nothing, 12, lr=1e-9)[0].step >= 9
    alerts_of_bf16 = said(Rounding(), in_bf16, lr=1e-5)
    assert "bfloat16 rounds away" in alerts_of_bf16[0].message
