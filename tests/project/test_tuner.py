"""bench.cuda.tune: what it decides, on a device of formulas."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from math import log2, sqrt
from pathlib import Path
from zlib import crc32

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench.cuda.tune.cases import DTYPES, HISTOGRAMS, LAYOUTS, Case, cases
from bench.cuda.tune.ledger import Key, Ledger, Machine, Measured
from bench.cuda.tune.policy import AXES, Code, Compiled, Plan, Policy, codes, read
from bench.cuda.tune.search import BrokenError, Found, OutOfTimeError, Search

pytestmark = pytest.mark.check

MACHINE = Machine("a GPU", "9.0", "1.2", "abc")
DEFAULT = read()
CASES = [case for case in cases() if case.megabytes == 32]


class Simulated:
    """A GPU on which some numbers are best, and all others cost by their distance from these."""

    def __init__(self, best: dict[str, int], steepness: float = 0.06) -> None:
        self.best, self.steepness = best, steepness
        self.noise = 0.002
        self.calls: list[tuple[Compiled, Case, Plan]] = []
        self.answers: Callable[[Compiled, Case, Plan], Measured | None] = lambda *_: None

    def plan(self, compiled: Compiled, case: Case, plan: Plan) -> str:
        """Numbers that have no part in a case are not in its plan."""
        channels = LAYOUTS[case.layout][0]
        tensor, of_channels = HISTOGRAMS[case.histograms]
        if case.agent == "columns":
            width = min(plan.column_roots * sqrt(channels), plan.column_bytes / DTYPES[case.dtype])
            used = [plan.column_pieces, max(width, plan.least_columns), plan.least_rows]
        else:
            used = [plan.pieces, min(plan.channel_pieces, plan.pieces), plan.least_tiles]
            used += [plan.copies if of_channels else 0]
        return " ".join(map(str, [case.agent, *used, plan.histogram_blocks if tensor else 0]))

    def time(self, compiled: Compiled, case: Case, plan: Plan) -> Measured:
        self.calls.append((compiled, case, plan))
        if (answer := self.answers(compiled, case, plan)) is not None:
            return answer
        numbers = compiled._asdict() | plan._asdict()
        unused = ("pieces", "copies") if case.agent == "columns" else ("column_pieces",)
        steps = sum(
            abs(log2(numbers[name] / value))
            for name, value in self.best.items()
            if name not in unused and (name != "copies" or HISTOGRAMS[case.histograms][1])
        )
        key = f"{compiled} {case} {self.plan(compiled, case, plan)}"
        noise = self.noise * (crc32(key.encode()) / 2**31 - 1)
        seconds = 3e-6 + case.megabytes * 2**20 / 4e12 * (1 + self.steepness * steps) * (1 + noise)
        return Measured("ok", seconds, seconds, seconds, 1755.0)


class Clock:
    """Time that passes by points alone."""

    def __init__(self, device: Simulated, points: int) -> None:
        self.device, self.end = device, len(device.calls) + points

    def __call__(self) -> float:
        return float(self.end - len(self.device.calls))


def search(
    device: Simulated,
    path: Path,
    points: int = 10**6,
    tried: Sequence[Code] = (DEFAULT.code,),
    machine: Machine = MACHINE,
) -> Search:
    ledger = Ledger(path, machine)
    return Search(device, ledger, DEFAULT, CASES, tried, Clock(device, points))


def tuned(device: Simulated, path: Path, tried: Sequence[Code] = (DEFAULT.code,)) -> Found:
    return search(device, path, tried=tried).run()


BEST = {"column_pieces": 4, "pieces": 8, "copies": 1}


def test_a_planted_optimum_is_found(tmp_path: Path) -> None:
    best = {**BEST, "block": 128, "in_flight": 8}
    found = tuned(Simulated(best), tmp_path / "tune.csv", codes())
    assert found.is_taken
    numbers = found.policy.code._asdict() | found.policy.plan._asdict()
    assert {name: numbers[name] for name in best} == best
    others = set(Plan._fields) - set(best)
    assert all(numbers[name] == DEFAULT.plan._asdict()[name] for name in others)
    assert 0.7 < found.compared.mean < 0.95
    assert found.compared.worst[0] < 1.0
    assert found.notes == []


def test_registers_are_of_each_agent_by_itself(tmp_path: Path) -> None:
    device = Simulated({})

    def quick(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        few = compiled in (Compiled("runs", 256, 4, 4), Compiled("columns", 256, 4, 3))
        return Measured("ok", 1e-5) if few else Measured("ok", 2e-5)

    device.answers = quick
    found = tuned(device, tmp_path / "tune.csv", codes())
    assert found.policy == DEFAULT._replace(code=Code(256, 4, 4, 3))
    assert found.policy.code not in codes()  # its kernels are of two programs


def test_a_run_that_is_cut_off_comes_to_the_same(tmp_path: Path) -> None:
    whole = Simulated(BEST)
    expected = tuned(whole, tmp_path / "whole.csv")
    device, path = Simulated(BEST), tmp_path / "parts.csv"
    found, runs = None, 0
    while found is None:
        before = len(device.calls)
        try:
            found = search(device, path, points=300).run()
        except OutOfTimeError:
            assert (
                len(device.calls) == before + 300
            )  # neither more nor less than there was time for
        runs += 1
    assert runs > 2
    assert (found.policy, found.compared.ratios) == (expected.policy, expected.compared.ratios)
    assert device.calls == whole.calls
    assert [row.split(",")[2:] for row in path.read_text().splitlines()] == [
        row.split(",")[2:] for row in (tmp_path / "whole.csv").read_text().splitlines()
    ]


def test_points_with_one_plan_are_measured_once(tmp_path: Path) -> None:
    device = Simulated(BEST)
    tuned(device, tmp_path / "tune.csv")
    seen = [
        (compiled, case, device.plan(compiled, case, plan)) for compiled, case, plan in device.calls
    ]
    again = [each for each in set(seen) if seen.count(each) > 1]
    best = tuned(device, tmp_path / "tune.csv").policy
    final = {device.plan(best.code.of(case.agent), case, best.plan) for case in CASES}
    final |= {device.plan(DEFAULT.code.of(case.agent), case, DEFAULT.plan) for case in CASES}
    assert {plan for _, _, plan in again} <= final  # those of the turns at the end


@pytest.mark.parametrize("wrong", [Compiled("runs", 128, 4, 6), Compiled("columns", 128, 4, 4)])
def test_a_wrong_integer_refuses_kernels_and_says_so(tmp_path: Path, wrong: Compiled) -> None:
    device = Simulated({"block": 128})

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        return Measured("wrong", text="tally 3 is 7; expected 8") if compiled == wrong else None

    device.answers = answers
    tried = [Code(128, 4, 6, 4), Code(128, 4, 8, 8)]
    found = tuned(device, tmp_path / "tune.csv", tried)
    assert found.policy.code.block == 128
    assert found.policy.code.of(wrong.agent) != wrong
    (note,) = found.notes
    assert str(wrong) in note
    assert "tally 3 is 7; expected 8" in note
    assert [call[0] for call in device.calls].count(wrong) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Measured("wrong", text="tally 3 is 7; expected 8"), "a wrong result: "),
        (Measured("crashed", text="it ended with -11"), "3 crashes"),
    ],
)
def test_numbers_that_break_the_kernels_are_refused(
    tmp_path: Path, answer: Measured, why: str
) -> None:
    device = Simulated({"column_pieces": 4})

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        return answer if case.agent == "columns" and plan.column_pieces == 4 else None

    device.answers = answers
    found = tuned(device, tmp_path / "tune.csv")
    assert found.policy.plan.column_pieces == 3
    assert found.notes[0].startswith(f"column_pieces = 4: refused: {why}")


@pytest.mark.parametrize(
    ("answer", "said", "points"),
    [
        (Measured("wrong", text="tally 3 is 7"), "a wrong result: .*: tally 3 is 7", 1),
        (Measured("crashed", text="no kernel"), "3 crashes, the last on ", 3),
    ],
)
def test_kernels_that_are_broken_as_they_are_end_the_search(
    tmp_path: Path, answer: Measured, said: str, points: int
) -> None:
    device = Simulated({})
    device.answers = lambda *_: answer
    with pytest.raises(BrokenError, match=said):
        tuned(device, tmp_path / "tune.csv")
    assert len(device.calls) == points


def test_a_crash_loses_one_point(tmp_path: Path) -> None:
    expected = tuned(Simulated(BEST), tmp_path / "whole.csv")
    device, path = Simulated(BEST), tmp_path / "tune.csv"
    lost = next(case for case in CASES if case.agent == "columns")

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        crashes = case == lost and plan.column_pieces == 4
        return Measured("crashed", text="it ended with -11") if crashes else None

    device.answers = answers
    found = tuned(device, path)
    assert found.policy == expected.policy
    assert set(expected.compared.ratios) - set(found.compared.ratios) == {lost}
    calls = len(device.calls)
    assert tuned(device, path) == found
    assert len(device.calls) == calls  # a crash is not asked for again


def test_ties_keep_what_is(tmp_path: Path) -> None:
    device = Simulated({})
    device.noise = 0.008
    found = tuned(device, tmp_path / "tune.csv", codes())
    assert found.policy == DEFAULT
    assert not found.is_taken


def test_no_case_may_be_much_slower_than_it_was(tmp_path: Path) -> None:
    device = Simulated({"column_pieces": 4})
    bad = next(case for case in CASES if case.agent == "columns")

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        if case != bad or plan.column_pieces == DEFAULT.plan.column_pieces:
            return None
        return Measured("ok", 1e-3)

    device.answers = answers
    assert tuned(device, tmp_path / "tune.csv").policy == DEFAULT


def test_a_point_that_was_disturbed_is_measured_again(tmp_path: Path) -> None:
    device = Simulated({"column_pieces": 4})

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        is_first = device.calls.count((compiled, case, plan)) == 1
        is_tried = plan == DEFAULT.plan._replace(column_pieces=4) and case.agent == "columns"
        return Measured("ok", 1e-3) if is_first and is_tried else None

    device.answers = answers
    assert tuned(device, tmp_path / "tune.csv").policy.plan.column_pieces == 4


def test_what_was_luck_is_not_taken_in_the_end(tmp_path: Path) -> None:
    device = Simulated({})

    def answers(compiled: Compiled, case: Case, plan: Plan) -> Measured | None:
        if case.agent == "runs" or plan.column_pieces != 4:
            return None
        again = [call[1] for call in device.calls if call[2] == plan].count(case)
        return Measured("ok", 9e-6 if again == 1 else 1.3e-5)

    device.answers = answers
    found = tuned(device, tmp_path / "tune.csv")
    assert found.policy == DEFAULT
    assert not found.is_taken
    assert "in turns it takes" in found.compared.refused


def test_points_of_another_machine_are_kept_and_not_used(tmp_path: Path) -> None:
    device, path = Simulated(BEST), tmp_path / "tune.csv"
    tuned(device, path)
    calls, text = len(device.calls), path.read_text()
    other = MACHINE._replace(driver="1.3")
    assert Ledger(path, other).of_others == calls
    with pytest.raises(OutOfTimeError):
        search(device, path, points=7, machine=other).run()
    assert path.read_text().startswith(text)
    assert (len(Ledger(path, other)), len(Ledger(path, MACHINE))) == (7, calls)


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    ledger = Ledger(path, MACHINE)
    keys = [Key(DEFAULT.code.of(case.agent), case, "a plan", 0) for case in CASES[:3]]
    for i, key in enumerate(keys):
        ledger.add(key, DEFAULT.plan, Measured("ok", 1e-5 * i, 1.0, 2.0, 1755.0, 'said "so",\nyes'))
    assert Ledger(path, MACHINE).find(keys[2]) == ledger.find(keys[2])
    path.write_text(path.read_text()[:-5])
    again = Ledger(path, MACHINE)
    assert [again.find(key) for key in keys] == [ledger.find(keys[0]), ledger.find(keys[1]), None]
    again.add(keys[2], DEFAULT.plan, Measured("crashed"))
    assert Ledger(path, MACHINE).find(keys[2]) == Measured("crashed")


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="other columns"):
        Ledger(path, MACHINE)
    assert path.read_text() == "a,b\n1,2\n"


def test_what_is_tried_is_around_what_is() -> None:
    assert set(AXES) == set(Plan._fields)
    for name, values in AXES.items():
        assert getattr(DEFAULT.plan, name) in values
        assert list(values) == sorted(set(values))
    assert DEFAULT.code in codes()
    for code in codes():
        assert code.block * max(code.runs_blocks, code.columns_blocks) <= 2048
    assert isinstance(DEFAULT, Policy)
