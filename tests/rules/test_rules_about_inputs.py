"""The rules about what the model is called with: arguments by name, masks of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.modules import take_step
from torch import Tensor, nn

from hookstats.records.alerts import incidents_of
from hookstats.rules import Alert, Inputs, NonFinite, RepeatedInputs, Rule, SuddenShift
from hookstats.watching.watch import watch

INF = float("inf")


class Classifier(nn.Module):
    """Takes what the models of transformers take: all by name, the labels perhaps first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, *, labels: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = (self.embed(input_ids) * attention_mask[..., None]).mean(1)
        return nn.functional.cross_entropy(self.head(hidden), labels)


def batch(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {
        "labels": torch.randint(3, (16,)),
        "attention_mask": torch.ones(16, 12),
        "input_ids": torch.randint(50, (16, 12)),
    }


def said(
    rule: Rule, model: nn.Module, batches: Iterator[dict[str, Any]] | list[dict[str, Any]]
) -> list[Alert]:
    """What a rule says while a model is called with some batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, rules=replace(rule, action=lambda alert: None)) as w:
        for one in batches:
            take_step(optimizer, model(**one).sum())
    assert w.coverage().failures == {}
    return list(w.alerts)


def test_inputs_that_are_given_by_name() -> None:
    sound = [batch(seed) for seed in range(34)]
    assert said(Inputs(), Classifier(), sound) == []
    assert said(RepeatedInputs(), Classifier(), sound) == []
    blank = [*sound, {**batch(34), "input_ids": torch.zeros(16, 12, dtype=torch.long)}]
    (alert,) = said(Inputs(), Classifier(), blank)
    assert (alert.step, alert.site, alert.kind) == (34, "", "input.input_ids")
    assert "input.input_ids of the model is 0 everywhere" in alert.message
    (alert,) = said(RepeatedInputs(), Classifier(), [*sound, *sound[-1:] * 3])
    assert (alert.step, alert.kind) == (35, "input.input_ids")


@pytest.mark.check
@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (lambda step: torch.randint(50, (16, 12)), []),
        (lambda step: torch.randint(2, 4, (16, 12)), []),  # others, that came before
        (lambda step: torch.randint(400, 900, (16, 12)), [30]),
    ],
)
def test_numbers_of_tokens_are_compared_as_a_set(
    tokens: Callable[[int], Tensor], found: list[int]
) -> None:
    model = Classifier()
    model.embed = nn.Embedding(900, 8)
    batches = [batch(step) for step in range(30)]
    batches += [{**batch(step), "input_ids": tokens(step)} for step in range(30, 36)]
    several = [said(rule, model, batches) for rule in (Inputs(), SuddenShift())]
    assert [alert.step for alerts in several for alert in alerts] == found


def test_an_input_by_name_is_no_consequence_of_what_came_before() -> None:
    (blank,) = said(
        Inputs(),
        Classifier(),
        [*map(batch, range(9)), {**batch(9), "input_ids": torch.ones(16, 12, dtype=torch.long)}],
    )
    before = replace(blank, step=8, site="head", kind="output", rule="peers")
    assert [one.cause for one in incidents_of([before, blank])] == [before, blank]


class Masked(nn.Module):
    """Attention with a mask that is added, as torch's own transformers take it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor, src_mask: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x, attn_mask=src_mask)
        found: Tensor = self.out(mixed)
        return found


def causal() -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(5)


@pytest.mark.parametrize(
    ("spoil", "severity"),
    [
        (lambda x, mask: None, None),
        (lambda x, mask: mask[0, 0].fill_(torch.nan), "error"),
        (lambda x, mask: mask[0, 0].fill_(INF), "error"),
        (lambda x, mask: mask[0, 0].fill_(0.5), "note"),  # -inf alone does no harm
        (lambda x, mask: x[0, 0, 0].fill_(-INF), "error"),
    ],
)
def test_masks_of_attention_are_not_finite(
    spoil: Callable[[Tensor, Tensor], object], severity: str | None
) -> None:
    x, mask = torch.randn(4, 5, 8), causal()
    spoil(x, mask)
    found = said(NonFinite(), Masked(), [{"x": x, "src_mask": mask}] * 3)
    assert [alert.severity for alert in found] == ([] if severity is None else [severity])


def test_a_row_that_is_masked_throughout_is_blamed_on_the_attention() -> None:
    mask = causal()
    mask[2] = -INF
    (alert,) = said(NonFinite(), Masked(), [{"x": torch.randn(4, 5, 8), "src_mask": mask}] * 2)
    assert (alert.site, alert.kind, alert.severity) == ("attention", "output", "error")


def test_a_mask_does_not_hide_what_comes_after_it() -> None:
    model = Masked()
    with torch.no_grad():
        model.out.bias[3] = torch.nan
    (alert,) = said(NonFinite(), model, [{"x": torch.randn(4, 5, 8), "src_mask": causal()}])
    assert (alert.site, alert.kind, alert.channel) == ("out", "output", 3)


class Colours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.conv(x).relu().mean((2, 3)))
        return out


@pytest.mark.check
@pytest.mark.parametrize(
    ("kind", "expected"), [("lost", (26, 24, 1)), ("seldom", None), ("blank", None)]
)
def test_a_channel_that_is_lost(kind: str, expected: tuple[int, int, int] | None) -> None:
    """Not one that is seldom there, nor one that was gone before."""
    torch.manual_seed(0)
    batches = []
    for step in range(30):
        x = torch.randn(16, 3, 8, 8)
        if kind == "seldom":
            x[:, 1] *= torch.rand(16, 8, 8) < 0.05
        if step >= 24 or (kind == "blank" and step == 3):
            x[:, 1] = 0
        batches.append({"x": x})
    alerts = [alert for alert in said(Inputs(), Colours(), batches) if alert.channel is not None]
    assert [(a.step, a.since, a.channel) for a in alerts] == ([expected] if expected else [])
    if alerts:
        assert "has 1 of 3 channels that are all zero now" in alerts[0].message
