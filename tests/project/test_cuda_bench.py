"""What `make gpu-check` is made of, as far as it goes without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda import check, peers, sections, timing
from bench.cuda.__main__ import main
from bench.cuda.cases import ALL, CONTENTS, WHATS, layouts, values
from bench.cuda.results import Row, as_json, as_table, verdicts

CPU = torch.device("cpu")

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]

READ = Row(
    "reading", "(N, L, 64)", "update_", 100.0, "bfloat16", what="moments", bytes=2**28, ratio=0.95
)


def of(rows: list[Row], target: str) -> tuple[float | None, bool | None, str]:
    (found,) = (v for v in verdicts(rows) if target in v.target)
    return found.worst, found.reached, found.where


def test_a_target_is_as_far_as_its_worst_row() -> None:
    target = "moments, bfloat16"
    assert of([], target) == (None, None, "not measured")
    assert of([READ], target)[:2] == (0.95, True)
    slow = replace(READ, case="whole tensor", ratio=0.91)
    assert of([READ, slow], target) == (0.91, False, "whole tensor bfloat16 normal moments")
    for other in (
        replace(slow, peer="torch.sum"),
        replace(slow, section="beside"),
        replace(slow, what="+ 64 bins per channel"),
        replace(slow, dtype="float32"),
    ):
        assert of([READ, other], target)[:2] == (0.95, True)


@pytest.mark.parametrize(
    ("section", "case", "target", "good", "bad"),
    [
        ("skewed", "any", "skewed", 0.8, 0.79),
        ("gradients", "device", "time over that of reading", 1.3, 1.31),
        ("gradients", "host", "milliseconds of the host", 1.0, 1.1),
        ("host", "one observation", "one observation", 2.0, 2.1),
        ("transformer", "every=1", "every=1:", 4.0, 4.1),
        ("transformer", "every=10", "every=10:", 0.5, 0.6),
    ],
)
def test_every_target_has_its_rows(
    section: str, case: str, target: str, good: float, bad: float
) -> None:
    row = Row(section, case, "watch", 1.0, ratio=good)
    assert of([row], target)[:2] == (good, True)
    assert of([row, replace(row, ratio=bad)], target)[:2] == (bad, False)
    assert of([replace(row, ratio=None)], target)[1] is None


def test_the_file_and_the_table_hold_it_all() -> None:
    rows = [READ, Row("host", "one call", "update_", 4.25)]
    facts = {"device": "a GPU", "driver": "1.2", "torch": "2.11"}
    found = as_json(facts, rows, ["racecheck: not done"])
    assert json.loads(json.dumps(found)) == found
    assert found["machine"] == facts
    assert [row["microseconds"] for row in found["rows"]] == [100.0, 4.25]
    table = as_table(facts, rows, ["racecheck: not done"])
    assert "device a GPU · driver 1.2 · torch 2.11" in table
    assert "| (N, L, 64) | bfloat16 | normal | moments | update_ | 100.0 | 2684 | 0.95 |" in table
    assert (
        "| transformer, every=1: % of the step | <= 4 | - | not measured | not measured |" in table
    )
    assert table.endswith("- racecheck: not done\n")


def test_inputs_are_as_many_as_keep_each_cold() -> None:
    for nbytes in (1 << 20, 100_000_000, 1 << 28, 5 << 30):
        inputs = timing.inputs_for(nbytes)
        assert (inputs - 1) * nbytes >= timing.COLD_BYTES
        assert inputs >= 2


def test_peers_take_turns_with_the_inputs() -> None:
    calls: list[tuple[str, int]] = []
    runs = {name: (lambda i, name=name: calls.append((name, i))) for name in "ab"}
    times = timing.take_turns(runs, 3, 4, CPU)
    assert [len(times[name]) for name in "ab"] == [4, 4]
    assert [i for _, i in calls] == [n % 3 for n in range(12)]
    assert [name for name, _ in calls] == ["a", "b"] * 6


def test_layouts_have_the_elements_they_are_to_have() -> None:
    for elements in (1 << 22, 1 << 26):
        found = layouts(elements)
        assert [torch.Size(layout.shape).numel() for layout in found] == [elements] * len(found)
        assert {64, 256, 1024, 4096, 16384} <= {each.channels for each in found}


@pytest.mark.parametrize("content", CONTENTS)
def test_contents_are_what_they_are_called(content: str) -> None:
    x = values(content, 1 << 16, torch.float32, CPU)
    assert torch.equal(x.isnan(), values(content, 1 << 16, torch.float32, CPU).isnan())
    share = {
        "normal": (x.abs() < 6).float().mean(),
        "constant": (x == x[0]).float().mean(),
        "99% zero": (x == 0).float().mean() + 0.01,
        "heavy-tailed": (x.abs() > 100).any().float(),
        "1% NaN": 1 - (x.isnan().float().mean() - 0.01).abs(),
    }[content]
    assert float(share) == pytest.approx(1.0, abs=3e-3)


def sample() -> peers.Sample:
    layout = next(each for each in layouts(1 << 18) if each.name == "(N, 64, H, W)")
    return peers.Sample(layout, values("1% NaN", 1 << 18, torch.float32, CPU), 2)


@pytest.mark.parametrize("what", WHATS, ids=str)
def test_what_was_timed_is_checked(what: peers.What) -> None:
    given = sample()
    for peer in (peers.Update(given, what), peers.statistics(given, what, compiled=False)):
        for number in (0, 1, 0):
            peer.run(number)
        peer.check()


def test_a_wrong_result_is_found() -> None:
    given = sample()
    update = peers.Update(given, ALL)
    update.run(0)
    given.xs[1].view(-1)[12345] += 1.0
    update.run(1)
    with pytest.raises(AssertionError):
        update.check()


def test_a_smoke_run_writes_the_result_and_says_that_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    only = ["--sections", "gradients", "host", "transformer", "--note", "tests: 3 passed"]
    assert main(["--smoke", "--device", "cpu", "--out", str(out), *only]) == 0
    found = json.loads((out / "gpu-check.json").read_text())
    assert {row["section"] for row in found["rows"]} == {"gradients", "host", "transformer"}
    assert "tests: 3 passed" in found["notes"]
    assert any("no figure here is a measurement" in note for note in found["notes"])
    assert (out / "gpu-check.md").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit, match="expected cuda"):
        main(["--device", "cpu", "--out", str(out)])


def test_a_section_that_comes_too_late_is_left_out(tmp_path: Path) -> None:
    assert main(["--smoke", "--device", "cpu", "--out", str(tmp_path), "--seconds", "-1"]) == 0
    notes = json.loads((tmp_path / "gpu-check.json").read_text())["notes"]
    late = [note for note in notes if "not measured, time ran out" in note]
    assert len(late) == len(sections.SECTIONS)


@pytest.mark.parametrize(
    ("code", "said", "well"),
    [
        (0, "24 folds agree with the CPU\n========= ERROR SUMMARY: 0 errors\n", True),
        (9, "========= Invalid read\n========= ERROR SUMMARY: 3 errors\n", False),
        (0, "4 folds agree with the CPU\nRACECHECK SUMMARY: 0 hazards displayed (0 errors)", True),
        (0, "4 folds agree with the CPU\nRACECHECK SUMMARY: 2 hazards displayed (2 errors)", False),
        (1, "Error: Device not supported\n========= ERROR SUMMARY: 0 errors\n", None),
        (1, "Error: Device not supported\n========= ERROR SUMMARY: 1 error\n", None),
        (1, "Error: no such tool\n", None),
        (None, "", None),
    ],
)
def test_what_a_sanitizer_says(code: int | None, said: str, well: bool | None) -> None:
    assert check.verdict("memcheck", code, said).well is well


def test_what_a_sanitizer_said_is_in_the_result(tmp_path: Path) -> None:
    check.add_note(tmp_path, "memcheck: nothing was measured")
    assert not list(tmp_path.iterdir())
    (tmp_path / "gpu-check.json").write_text(json.dumps(as_json({}, [READ], ["tests: fine"])))
    (tmp_path / "gpu-check.md").write_text("- tests: fine\n")
    check.add_note(tmp_path, "memcheck: 0 errors")
    notes = json.loads((tmp_path / "gpu-check.json").read_text())["notes"]
    assert notes == ["tests: fine", "memcheck: 0 errors"]
    assert (tmp_path / "gpu-check.md").read_text() == "- tests: fine\n- memcheck: 0 errors\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/cuda/check.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "finds no GPU" in done.stderr
    assert "Traceback" not in done.stderr
