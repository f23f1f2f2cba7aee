"""The default rules on a sample of the corpus of planted faults; `make faults` has all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.faults.cases import differs, run_case
from bench.faults.fault import LATE, SHARES, Fault
from bench.faults.faults import FAULTS
from bench.faults.models import BASES
from bench.faults.score import names, print_healthy, score
from bench.faults.sound import PROGRAMS, train
from hookstats import open_run
from hookstats.watching.handle import Watch
from hookstats.watching.schedule import Schedule

SAMPLE = (
    "init/symmetric",
    "data/scaled-batch",
    "optim/left-out",
    "optim/rate-jump",
    "numerics/softmax-saturates",
    "arch/saturated-tanh",
)
IN_THE_MIDDLE = (
    "data/half-lost",
    "data/duplicated",
    "optim/frozen-late",
    "optim/rate-jump",
    "optim/no-clipping",
    "optim/sum-for-mean",
    "arch/dead-late",
)
HEALTHY = ("cnn-norm", "gpt-small", "rnn", "mlp-fp16")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_corpus_is_what_it_says() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 48
    assert len(BASES) >= 16
    tuned, held_out, later = (sum(f.share == share for f in FAULTS) for share in SHARES)
    assert 0.4 < held_out / (tuned + held_out) < 0.6
    assert later >= 8
    for fault in FAULTS:
        assert fault.base in BASES
        assert fault.where or fault.says
        assert fault.step in (0, LATE)


def _set_pace(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Have the default record every 2^k-th step, whatever the machine's pace, and check each step
    before the next one begins."""
    schedule = Watch._schedule

    def choose(self: Schedule, *, is_first: bool) -> None:
        self._wanted, self._takes = k, 0.0

    def drained(self: Watch) -> None:
        self._recorder.drain(disk=False)
        schedule(self)

    monkeypatch.setattr(Schedule, "_choose", choose)
    monkeypatch.setattr(Watch, "_schedule", drained)


@pytest.mark.full
@pytest.mark.parametrize("name", IN_THE_MIDDLE)
def test_the_default_finds_what_begins_at_step_1000(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_pace(monkeypatch, 4)
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    # At step 1008, which is recorded, the norm needs no clipping: nothing shows that there is none.
    begins = 1009 if name == "optim/no-clipping" else 1000
    late = replace(fault, step=begins)
    outcome = run_case(fault.base, late, seed=0, steps=1200, out=tmp_path / "a", every="auto")
    assert outcome.failures == {}
    run = open_run(tmp_path / "a")
    assert run.coverage is not None
    every = 16
    assert [choice["every"] for choice in run.coverage["budget"]["choices"]] == [every]
    assert len(run.steps) < 1200 / every + 64 + 16 + 60
    assert [alert for alert in outcome.alerts if alert.level and alert.step < begins] == []
    found = [alert for alert in outcome.alerts if alert.level and names(late, alert)]
    assert begins <= found[0].step <= begins + every + 1
    assert [step for step in run.steps_with_channels if begins - 4 * every <= step < begins]


@pytest.mark.check
@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_is_found_where_it_is(name: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    outcome = run_case(fault.base, fault, seed=0)
    assert outcome.failures == {}
    assert differs(fault, outcome, run_case(fault.base, None, seed=0))
    found = score(fault, 0, outcome, counts=True)
    assert found.found is not None
    assert found.first


@pytest.mark.check
@pytest.mark.parametrize("base", HEALTHY)
def test_a_sound_run_is_no_news(base: str) -> None:
    assert print_healthy(base, 0, run_case(base, None, seed=0))


@pytest.mark.check
def test_the_score_counts_no_alert_about_something_else() -> None:
    outcome = run_case("mlp", None, seed=0)
    for fault in FAULTS:
        assert score(fault, 0, outcome, counts=True).found is None
    jump = next(fault for fault in FAULTS if fault.name == "optim/rate-jump")
    found = run_case(jump.base, jump, seed=0)
    other = Fault(name="optim/other", base="mlp", where=("fc2",), step=LATE)
    assert score(other, 0, found, counts=True).found is None


SOUND = (
    "last_batch_is_small",
    "mnist_example",
    "efficientnet",
    "embeddings_of_two_sizes",
    "byol",
    "dqn",
    "dcgan",
    "zero_initialised_branches",
)
"""Kinds that were false alarms once."""


def test_the_sound_trainings_are_what_they_say() -> None:
    shares = [program.share for program in PROGRAMS.values()]
    assert len(shares) >= 60
    assert min(shares.count("tuned"), shares.count("scored")) >= 30


@pytest.mark.check
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_is_left_alone(name: str) -> None:
    alerts, _ = train(PROGRAMS[name.replace("_", "-")], seed=0, steps=60)
    assert [alert.message for alert in alerts if alert.level] == []
