"""hookstats show: the table of a step, chosen and sorted, and the alerts so far."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from support.commands import call, healthy, write_run
from support.samples import record_of, sample

from hookstats import open_run, rules
from hookstats.records.alerts import Alert, Severity
from hookstats.records.record import StepRecord
from hookstats.runs.alerts import AlertEntry, AlertFile
from hookstats.runs.files import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *map(healthy, (0, 5, 10)))


def layers(*arguments: object) -> list[tuple[str, str]]:
    """Layer and kind of the rows of a table."""
    result = call("show", *arguments)
    assert (result.code, result.err) == (0, "")
    end = result.words.index("")
    return [(words.split()[0], words.split()[1]) for words in result.words[3:end]]


@pytest.mark.parametrize(
    ("step", "shown"), [([], 10), (["--step", 5], 5), (["--step", -3], 0), (["--step", "-1"], 10)]
)
def test_a_step_is_shown(run: Path, step: list[object], shown: int) -> None:
    result = call("show", run, *step)
    assert (result.code, result.err) == (0, "")
    assert result.words[0] == f"step {shown}"
    assert len(result.words) == 3 + 6 + 2
    assert result.words[-1] == "no incidents"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("7", "step 7: {run} has 3 steps in 0..10"),
        ("-4", "--step -4: {run} has 3 steps"),
    ],
)
def test_a_step_that_is_not_there_is_an_error(run: Path, step: str, message: str) -> None:
    result = call("show", run, "--step", step)
    said = message.format(run=run)
    assert result == (2, "", f"hookstats show: error: {said}\n")


def test_ranks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sample(0))
    write_run(run, sample(3, rank=2), rank=2)
    assert call("show", run, "--rank", 2).words[0] == "step 3, rank 2"
    result = call("show", run, "--rank", 1)
    assert (result.code, result.err) == (
        2,
        f"hookstats show: error: --rank 1: {run} has the ranks 0, 2\n",
    )


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = call("show", run)
    assert result == (2, "", f"hookstats show: error: step 0: {run} has no steps yet\n")


def test_layers_and_kinds_are_chosen(run: Path) -> None:
    order = list(healthy(0))
    assert layers(run) == order
    assert layers(run, "--layer", "encoder.*") == [k for k in order if k[0].startswith("enc")]
    assert layers(run, "--layer", "head", "--layer", "encoder.1") == [
        k for k in order if k[0] in ("head", "encoder.1")
    ]
    assert layers(run, "--kind", "*grad*") == [k for k in order if "grad" in k[1]]
    assert layers(run, "--kind", "output", "--kind", "param_grad", "--layer", "head*") == [
        ("head", "output"),
        ("head.weight", "param_grad"),
    ]


@pytest.mark.parametrize(
    ("choice", "hint"),
    [
        (["--layer", "encodr.1"], "'encoder.1'"),
        (["--layer", "heads.*"], "'head"),
        (["--kind", "grad_outputs"], "'grad_output'"),
        (["--layer", "head.weight", "--kind", "output"], "head.weight"),
    ],
)
def test_an_unknown_layer_or_kind_names_close_ones(run: Path, choice: list[str], hint: str) -> None:
    result = call("show", run, *choice)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("hookstats show: error: no site ")
    assert hint in result.err
    assert result.err.count("\n") == 1


def test_sites_are_sorted(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        healthy(0, {("head", "output"): 5.0, ("encoder.1", "output"): 9.0}),
    )
    assert layers(run, "--sort", "std")[:2] == [("encoder.1", "output"), ("head", "output")]
    assert layers(run, "--sort", "order") == list(healthy(0))


def sick(step: int) -> StepRecord:
    """A network whose head overflows in step 3, for good."""
    x = torch.ones(4, 3)
    if step >= 3:
        x[1, 2] = torch.inf
    y = torch.ones(4, 2)
    return record_of({("body", "output"): (y, 1), ("head", "output"): (x, 1)}, step)


def test_alerts_are_those_of_the_steps_so_far(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(sick, range(6)))
    first, *others = rules.replay(open_run(run))
    assert "'head'" in first.message
    assert first.step == 3
    expected = first.message + f"; {len(others)} consequences" * bool(others)
    expected += f"; what helps: {rules.NonFinite.advice}"
    show = partial(call, "show", run, "--rules", "default")
    assert show().words[-2:] == ["1 error:", f"error: {expected}"]
    assert show("--step", 2).words[-1] == "no incidents"
    assert show("--layer", "body").words[-1] == "no incidents here, 1 about other layers"
    assert "incident" not in show("--alerts", 0).out
    # Nobody watched this run by rules.
    assert call("show", run).words[-1] == "no incidents"


def test_it_opens_on_the_worst_incident(tmp_path: Path) -> None:
    """The step, the kind and the statistic of the cause; its layer first."""

    def step(number: int) -> StepRecord:
        x = torch.ones(4, 8)
        some = x.clone()
        some[0] = 0
        data = {("first", "output"): some, ("drop", "output"): x * (torch.arange(8) < number)}
        data["first", "grad_output"] = x
        return record_of({key: (tensor, 1) for key, tensor in data.items()}, number)

    run = write_run(tmp_path / "run", *map(step, range(4)))
    told = [
        Alert(1, 0, "drop", "output", None, "dropout", 1.0, "dropout: step 1: all", "warning"),
        Alert(3, 0, "loss", "scalar", None, "loss", 1.0, "loss: step 3: a bit", "note"),
    ]
    entries = [AlertEntry(alert, i, True, {}) for i, alert in enumerate(told)]
    AlertFile(RunDirectory(run), 0).write(entries)
    shown = call("show", run).words
    assert shown[0] == "step 1, of the worst incident"
    assert shown[2].startswith("layer kind shape zero mean std")
    assert [words.split()[:4] for words in shown[3:5]] == [
        ["drop", "output", "4x8", "88%"],
        ["first", "output", "4x8", "25%"],
    ]
    assert shown[5] == "--step 1 prints all its tensors, --step -1 the last step"
    assert shown[-1].startswith("warning: dropout: step 1: all; 1 consequence;")  # of a later step
    for asked in (("--step", -1), ("--kind", "*"), ("--sort", "order"), ("--alerts", 0)):
        assert call("show", run, *asked).words[0] == "step 3"


def test_the_incident_of_a_large_model_fits_on_a_screen(tmp_path: Path) -> None:
    x = (torch.ones(4, 8), 1)
    run = write_run(tmp_path / "run", record_of({(f"{i}", "output"): x for i in range(50)}))
    alert = Alert(0, 0, "7", "output", None, "mine", 1.0, "mine: step 0: beware", "warning")
    AlertFile(RunDirectory(run), 0).write([AlertEntry(alert, 0, True, {})])
    shown = call("show", run).words
    assert shown[3].startswith("7 output")
    assert shown[23] == "... and 30 more; --step 0 prints all its tensors, --step -1 the last step"
    assert shown[-1] == "warning: mine: step 0: beware"
    assert len(call("show", run, "--step", 0).words) > 50


def test_alerts_are_those_that_the_run_has(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(sick, range(3)))
    alert = Alert(1, 0, "body", "output", None, "mine", 1.0, "mine: step 1: beware", "note")
    AlertFile(RunDirectory(run), 0).write([AlertEntry(alert, 0, True, {})])
    assert call("show", run).words[-2:] == ["1 note:", "note: mine: step 1: beware"]
    assert call("top", run).words[-2:] == ["1 note:", "note: mine: step 1: beware"]
    assert call("show", run, "--step", 0).words[-1] == "no incidents"
    assert call("show", run, "--rules", "non-finite").words[-1] == "no incidents"


def test_alerts_of_iterations_that_closed_no_step_come_with_the_last_step(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(healthy, range(3)))
    alert = Alert(3, 0, "loss", "scalar", None, "mine", 1.0, "mine: step 3: beware", "note")
    AlertFile(RunDirectory(run), 0).write([AlertEntry(alert, 0, True, {})])
    assert call("show", run).words[-2:] == ["1 note:", "note: mine: step 3: beware"]
    assert call("show", run, "--step", 1).words[-1] == "no incidents"


def test_a_late_error_is_not_hidden_behind_notes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *map(healthy, range(0, 60, 10)))
    levels: list[Severity] = ["note", "note", "note", "note", "note", "error"]
    told = [
        AlertEntry(
            Alert(10 * i, 0, "body", "output", None, f"r{i}", 1.0, f"r{i}: {level}", level),
            i,
            True,
            {},
        )
        for i, level in enumerate(levels)
    ]
    AlertFile(RunDirectory(run), 0).write(told)
    shown = call("show", run, "--alerts", 2).words[-3:]
    assert shown == ["1 error, 5 notes, the worst 2:", "note: r0: note", "error: r5: error"]
    assert call("top", run).words[-1] == "error: r5: error"
