"""What `make gpu-check` is made of, as far as it goes without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench import compare, report
from bench.cuda import cases, check, peers, profiled, sections, tables, timing
from bench.cuda.__main__ import main
from bench.cuda.targets import TARGETS
from bench.measured import Case, Results, Table
from bench.states import EVERYTHING
from bench.turns import Rounds, interleave
from bench.verdicts import Verdict, judge

CPU = torch.device("cpu")
GPU = {"device": "a GPU", "driver": "1.2", "torch": "2.11", "date": "2026-01-01"}

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]


def case(table: Table, seconds: dict[str, float], name: str = "any fp32") -> Case:
    """In rounds of which the second met a machine half as fast."""
    rounds = {peer: [s, 2 * s, s] for peer, s in seconds.items()}
    return Case(table, name, 1.0, rounds, facts={"MB": 268.435})


READ = case(tables.READING, {"torch.sum": 0.95e-4, "moments": 1e-4}, "(N, L, 64) bf16")


def of(measured: list[Case], claim: str) -> Verdict:
    (target,) = (target for target in TARGETS if claim in target.claim)
    (found,) = judge([target], Results(GPU, measured))
    return found


def test_a_target_is_as_far_as_its_worst_case() -> None:
    target = "moments, bf16"
    assert (of([], target).worst, of([], target).says) == (None, "not measured")
    assert (of([READ], target).worst, of([READ], target).reached) == (pytest.approx(0.95), True)
    times = {"torch.sum": 0.91, "moments": 1.0}
    slow = case(tables.READING, times, "whole tensor bf16")
    found = of([READ, slow], target)
    assert (found.worst, found.reached) == (pytest.approx(0.91), False)
    assert found.where == "reading whole tensor bf16"
    for other in (
        case(tables.BESIDE, times, "any bf16"),
        case(tables.READING, {"torch.sum": 0.91, tables.ALL: 1.0}, "any bf16"),
        case(tables.READING, times, "any fp32"),
    ):
        assert of([READ, other], target).worst == pytest.approx(0.95)


def test_histograms_of_columns_have_a_target_of_their_own() -> None:
    times = {"torch.sum": 0.7, tables.LOG: 1.0}
    measured = [case(tables.READING, times, f"{name} bf16") for name in ("(N, L, 3)", "rows of 8")]
    runs, columns = (of(measured, f"{tables.LOG}, bf16{which}:") for which in ("", ", columns"))
    assert (runs.bound, runs.where, runs.reached) == (0.8, "reading rows of 8 bf16", False)
    assert (columns.bound, columns.cases, columns.reached) == (0.6, 1, True)


SKEWED = dict.fromkeys(tables.CONTENTS, 1.0)


@pytest.mark.parametrize(
    ("target", "table", "good", "worse"),
    [
        ("skewed", tables.SKEWED[tables.ALL], SKEWED | {"normal": 0.81}, {"constant": 1.03}),
        (
            "gradients: to a read",
            tables.GRADIENTS,
            {"torch.sum": 1.0, "update_many_": 1.29},
            {"update_many_": 1.31},
        ),
        ("gradients: the host", tables.HOOK, {"watch": 0.99e-3}, {"watch": 1.01e-3}),
        (
            "one observation",
            tables.HOST,
            {"not watched": 3e-6, "watch": 5.9e-6, tables.LAUNCH: 2e-6},
            {"watch": 6.1e-6},
        ),
        (
            "every=1:",
            tables.TRANSFORMER,
            {"not watched": 1.0, "every=1": 1.029},
            {"every=1": 1.031},
        ),
        (
            "every=10:",
            tables.TRANSFORMER,
            {"not watched": 1.0, "every=10": 1.0029},
            {"every=10": 1.0031},
        ),
    ],
)
def test_every_target_has_its_cases(
    target: str, table: Table, good: dict[str, float], worse: dict[str, float]
) -> None:
    assert of([case(table, good)], target).reached is True
    assert of([case(table, good), case(table, good | worse)], target).reached is False


def test_the_file_and_the_text_hold_it_all(tmp_path: Path) -> None:
    path = tmp_path / "gpu-check.json"
    absent = replace(READ, name="(N, L, 256) bf16", absent={"cupy": "cupy is not installed"})
    report.write(Results(GPU, [READ, absent], ["racecheck: not done"]), path)
    found = Results.load(path)
    assert (found.machine, found.cases) == (GPU, [READ, absent])
    text = path.with_suffix(".txt").read_text()
    assert text == report.text(found)
    assert text.startswith("a GPU, driver 1.2, torch 2.11, 2026-01-01\n")
    assert re.search(r"\(N, L, 64\) bf16 +95\.00 +100 +- +- +1\.05 +- +- +268\.435\n", text)
    assert "- cupy: cupy is not installed ((N, L, 256) bf16)" in text
    assert re.search(r"moments, bf16: of torch.sum's rate +>= 0\.92x +0\.95x +2/2 +reached", text)
    assert re.search(r"transformer, every=1: added +<= 3% +- +- +not measured", text)
    assert text.endswith("\n\n- racecheck: not done\n")


def test_runs_on_gpus_are_compared() -> None:
    slower = replace(READ, seconds=READ.seconds | {"moments": [2e-4, 4e-4, 2e-4]})
    text = "\n".join(compare.lines(Results(GPU, [READ]), Results(GPU, [slower])))
    assert re.search(r"\(N, L, 64\) bf16 +moments +1\.05 +2\.11 +2\.00 +slower", text)


def test_it_needs_no_package_but_torch_and_numpy() -> None:
    others = ("matplotlib", "pytest", "pytest_benchmark", "cpuinfo")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({others}))\n"
    code = f"{blocked}import bench.cuda.__main__, bench.cuda.kernels, bench.cuda.check"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_without_torch_it_says_so() -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['check.py']; "
    code += f"runpy.run_path({str(ROOT / 'bench/cuda/check.py')!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_inputs_are_as_many_as_keep_each_cold() -> None:
    for nbytes in (1 << 20, 100_000_000, 1 << 28, 5 << 30):
        inputs = timing.inputs_for(nbytes)
        assert (inputs - 1) * nbytes >= timing.COLD_BYTES
        assert inputs >= 2


def test_every_call_has_the_input_that_was_not_used_for_longest() -> None:
    given = peers.Sample(cases.Layout("8 values", (8,), None), torch.ones(8), 3)
    calls: list[int] = []
    found = {
        name: peers.Found(given.next, lambda x: calls.append(x.data_ptr()), lambda _: None)
        for name in "ab"
    }
    interleave(found, Rounds(0.0, 4, 4), clock=timing.clock(CPU), warm_up=2)
    assert calls == 4 * [x.data_ptr() for x in given.xs]


def test_layouts_have_the_elements_they_are_to_have() -> None:
    for elements in (1 << 22, 1 << 26):
        found = cases.layouts(elements)
        sizes = [torch.Size(layout.shape).numel() for layout in found]
        assert all(0.6 * elements < size <= 1.6 * elements for size in sizes), sizes
        assert {64, 256, 1024, 4096, 16384} <= {each.channels for each in found}


@pytest.mark.parametrize("content", tables.CONTENTS)
def test_contents_are_what_they_are_called(content: str) -> None:
    x = cases.values(content, 1 << 16, torch.float32, CPU)
    assert torch.equal(x.isnan(), cases.values(content, 1 << 16, torch.float32, CPU).isnan())
    share = {
        "normal": (x.abs() < 6).float().mean(),
        "constant": (x == x[0]).float().mean(),
        "99% zero": (x == 0).float().mean() + 0.01,
        "heavy-tailed": (x.abs() > 100).any().float(),
        "1% NaN": 1 - (x.isnan().float().mean() - 0.01).abs(),
    }[content]
    assert float(share) == pytest.approx(1.0, abs=3e-3)


def sample() -> peers.Sample:
    layout = next(each for each in cases.layouts(1 << 18) if each.name == "(N, 64, H, W)")
    return peers.Sample(layout, cases.values("1% NaN", 1 << 18, torch.float32, CPU), 2)


@pytest.mark.parametrize("asked", tables.WHATS)
def test_what_was_timed_is_checked(asked: str) -> None:
    given, what = sample(), cases.WHATS[asked]
    for peer in (peers.Update(given, what), peers.statistics(given, what)):
        for _ in range(3):
            peer.prepare()
            peer.run()
        peer.check()


def test_a_wrong_result_is_found() -> None:
    given = sample()
    many = peers.UpdateMany(given.xs)
    many.run()
    many.check()
    given.xs[1].view(-1)[12345] += 1.0
    update = peers.Update(given, EVERYTHING)
    for _ in given.xs:
        update.prepare()
        update.run()
    for peer in (many, update):
        with pytest.raises(AssertionError):
            peer.check()


def test_a_smoke_run_writes_the_result_and_says_that_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "gpu-check.json"
    only = ["--sections", "reading", "gradients", "host", "transformer", "--note", "tests: well"]
    assert main(["--smoke", "--device", "cpu", "--out", str(path.parent), *only]) == 0
    found = Results.load(path)
    judged = {v.target for v in judge(TARGETS, found) if v.worst is None}
    assert judged == {
        "skewed data: of the rate on normal data",
        "one observation: the host's time over a launch",  # there is none without a GPU
    }
    assert "tests: well" in found.notes
    assert any("no figure here is a measurement" in note for note in found.notes)
    assert path.with_suffix(".txt").read_text() in capsys.readouterr().out
    with pytest.raises(SystemExit, match="expected cuda"):
        main(["--device", "cpu", "--out", str(tmp_path)])


def test_a_section_that_comes_too_late_is_left_out(tmp_path: Path) -> None:
    assert main(["--smoke", "--device", "cpu", "--out", str(tmp_path), "--seconds", "-1"]) == 0
    notes = Results.load(tmp_path / "gpu-check.json").notes
    late = [note for note in notes if ": 0 cases measured, time ran out" in note]
    assert len(late) == len(sections.SECTIONS)


def test_what_was_measured_before_an_error_stays(tmp_path: Path) -> None:
    def broken(scale: sections.Scale) -> Iterator[Case]:
        yield READ
        raise RuntimeError("no memory")

    assert main(["--smoke", "--device", "cpu", "--out", str(tmp_path)], (broken,)) == 1
    found = Results.load(tmp_path / "gpu-check.json")
    assert found.cases == [READ]
    assert "broken: FAILED: RuntimeError: no memory" in found.notes


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


def test_what_the_phases_said_is_in_the_result(tmp_path: Path) -> None:
    fine, missing = check.Outcome(True, "12 passed"), check.Outcome(None, "no such tool")
    check.keep(tmp_path, {"test": check.Outcome(False, "1 failed"), "memcheck": missing})
    path = tmp_path / "gpu-check.json"
    assert not path.exists()  # nothing was measured
    report.write(Results(GPU, [READ], ["reading: measured"]), path)
    check.keep(tmp_path, {"test": fine})
    notes = ["reading: measured", "test: ok: 12 passed", "memcheck: not done: no such tool"]
    assert Results.load(path).notes == notes
    check.keep(tmp_path, {"memcheck": check.Outcome(True, "0 errors")})
    assert Results.load(path).notes[1:] == ["test: ok: 12 passed", "memcheck: ok: 0 errors"]
    assert path.with_suffix(".txt").read_text().endswith("\n- memcheck: ok: 0 errors\n")


def test_a_phase_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys; print('begun', flush=True); "
    child += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    began = time.monotonic()
    code, said = check.Check(tmp_path, 460, "9.0").run("hangs", [sys.executable, "-c", child], 2)
    assert (code, said) == (None, "begun\n")
    assert time.monotonic() - began < 60


def test_another_call_measures_what_the_first_had_no_time_for(tmp_path: Path) -> None:
    calls = []

    def quick(scale: sections.Scale) -> Iterator[Case]:
        calls.append("quick")
        yield READ

    def late(scale: sections.Scale) -> Iterator[Case]:
        calls.append("late")
        yield replace(READ, table=tables.SIZES)

    options = ["--smoke", "--device", "cpu", "--out", str(tmp_path), "--resume"]
    assert main([*options, "--sections", "quick"], (quick, late)) == 0
    assert main(options, (quick, late)) == 0
    assert calls == ["quick", "late"]
    found = Results.load(tmp_path / "gpu-check.json")
    assert [case.table.title for case in found.cases] == ["reading", "sizes"]
    assert {"quick: measured", "late: measured"} <= set(found.notes)
    assert main([*options[:-1]], (quick, late)) == 0  # without --resume all is measured again
    assert calls == ["quick", "late", "quick", "late"]


def test_what_is_profiled_runs() -> None:
    profiled.main(CPU, 1 << 18)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench/cuda/check.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "finds no GPU" in done.stderr
    assert "Traceback" not in done.stderr
