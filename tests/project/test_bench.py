"""The benchmarks' own code: taking turns, results, tables, targets, comparisons and documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench import compare, report, tables, targets
from bench.measure import measure, required
from bench.measured import Case, Results, Table
from bench.steps.spread import spread
from bench.turns import Rounds, interleave

pytestmark = pytest.mark.check

BENCH = ROOT / "bench"
PAGES = ("performance.md", "performance-tables.md")

MACHINE = {
    "cpu": "a CPU",
    "cores": 2,
    "last_cache": "32M",
    "instruction_set": "AVX2",
    "threads": 2,
    "torch": "2.13.0",
    "python": "3.11",
    "hookstats": "0.1.0",
    "date": "2026-01-01",
}


def table(title: str = "moments", **options: Any) -> Table:
    return Table(title, "ns/element", 1e9, floor="read", **options)


def case(name: str = "rows fp32", slower: float = 1.0, **options: Any) -> Case:
    """hookstats at twice the floor, in rounds of which the second met a machine half as fast."""
    rounds = [1e-3, 2e-3, 1e-3]
    seconds = {
        "read": rounds,
        "hookstats": [2 * slower * s for s in rounds],
        "compile": [10 * s for s in rounds],
        "eager": [40 * s for s in rounds[:2]],
        "histc": [5 * s for s in rounds],
    }
    parts = {"histc": "a histogram"}
    return Case(table(parts=parts), name, 1e6, seconds, **options)


def results(*cases: Case) -> Results:
    return Results(MACHINE, cases)


class Counting:
    """A peer that says how long it took."""

    def __init__(self, log: list[str], name: str, seconds: float) -> None:
        self.log = log
        self.name = name
        self.seconds = seconds

    def prepare(self) -> None:
        self.log.append(f"prepare {self.name}")

    def run(self) -> float:
        self.log.append(self.name)
        return self.seconds

    def check(self) -> None:
        """Nothing was computed."""


def test_peers_take_turns_until_they_had_their_rounds() -> None:
    log: list[str] = []
    peers = {name: Counting(log, name, s) for name, s in (("quick", 0.1), ("slow", 1.0))}
    rounds = Rounds(seconds=0.25, least=2, most=9)
    times = interleave(peers, rounds)
    assert times == {"quick": [0.1] * 3, "slow": [1.0] * 2}
    ran = [entry for entry in log if "prepare" not in entry]
    assert ran == ["quick", "slow"] * 3 + ["quick"]  # one to warm up
    assert log[::2] == [f"prepare {name}" for name in ran]


def test_some_peers_have_more_rounds() -> None:
    peers = {name: Counting([], name, 1.0) for name in ("a", "b")}
    rounds = Rounds
    times = interleave(peers, rounds(0, least=1), {"b": rounds(0, least=4)})
    assert [len(seconds) for seconds in times.values()] == [1, 4]


def test_ratios_are_of_neighbouring_rounds() -> None:
    found = case()
    assert found.ratio("hookstats", "read") == pytest.approx(2)
    assert found.ratio("eager", "hookstats") == pytest.approx(20)  # of the rounds that both had
    assert found.over_floor("hookstats") == pytest.approx(1)
    assert found.value("hookstats") == pytest.approx(2)
    assert not found.disturbed("read")


def test_peers_are_those_that_compute_the_same() -> None:
    assert case().peers == ("compile", "eager")
    assert case().best_peer == "compile"


def test_results_survive_json(tmp_path: Path) -> None:
    before = results(case(absent={"wandb": "not installed"}, facts={"_bytes": 4.0}))
    before.notes.append("flush: not measured")
    path = tmp_path / "deep" / "bench.json"
    before.save(path)
    after = Results.load(path)
    assert after.machine == MACHINE
    assert after.cases == before.cases
    assert after.notes == before.notes


def test_a_run_of_a_part_keeps_the_other_tables() -> None:
    other = case()
    other.table = table("another")
    old, new = results(case("old"), other), results(case("new"))
    assert [found.name for found in old.merge(new).cases] == ["rows fp32", "new"]


def test_tables_of_another_machine_are_not_kept() -> None:
    new = results(case())
    for change, kept in (({"date": "2026-01-02"}, 2), ({"cpu": "another"}, 1)):
        old = Results({**MACHINE, **change}, [case()])
        old.cases[0].table = table("another")
        assert len(old.merge(new).cases) == kept


def test_tables() -> None:
    found = case(absent={"wandb": "wandb is not installed"})
    assert list(tables.lines(results(found))) == [
        "",
        "moments",
        "ns/element   read  hookstats  compile   eager  histc*  hookstats/read  "
        "hookstats/best peer  best peer",
        "rows fp32   1.00       2.00    10.00   60.00    5.00             2.00"
        "                 0.20    compile",
        "* histc: a histogram",
        "- wandb: wandb is not installed",
    ]


def test_targets_say_the_worst_case() -> None:
    some = results(case("rows bf16"), case("rows fp16", slower=1.1))
    lines = list(report.judged(some))
    assert len(lines) == 1 + len(targets.TARGETS)
    narrow = next(line for line in lines if "16 bits" in line)
    assert re.search(r"<= 2x +2\.20x +1/2 +short by 10% +moments rows fp16", narrow)
    assert sum("not measured" in line for line in lines) == len(lines) - 3


def test_runs_are_compared_by_ratios_to_the_floor() -> None:
    then, now = results(case()), results(case(slower=1.5))
    for seconds in now.cases[0].seconds.values():  # all of it on a machine half as fast
        seconds[:] = [2 * s for s in seconds]
    text = "\n".join(compare.lines(then, now))
    assert re.search(r"rows fp32 +hookstats +2\.00 +3\.00 +1\.50 +slower", text)
    assert re.search(r"geometric mean +1\.50", text)


def test_compare_fails_over_a_ratio(tmp_path: Path) -> None:
    paths: list[Path] = []
    for slower in (1.0, 1.5):
        paths.append(tmp_path / f"{slower}.json")
        results(case(slower=slower)).save(paths[-1])
    command = [sys.executable, "-m", "bench.compare", *map(str, paths), "--fail-over"]
    fine = subprocess.run([*command, "1.6"], cwd=ROOT, capture_output=True, text=True)
    assert fine.returncode == 0, fine.stderr
    slow = subprocess.run([*command, "1.4"], cwd=ROOT, capture_output=True, text=True)
    assert slow.returncode == 1
    assert "1.50 times" in slow.stderr


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    one, other, none = (tmp_path / name for name in ("one.json", "other.json", "none.json"))
    results(case()).save(one)
    results(case("another")).save(other)
    for path, message in ((other, "no case in common"), (none, "does not exist")):
        command = [sys.executable, "-m", "bench.compare", str(one), str(path)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 2
        assert message in ran.stderr


def test_documents_get_what_was_measured() -> None:
    document = (
        "# A\n<!-- measured: moments -->\nold\n<!-- end -->\n"
        "B\n<!-- measured: machine -->\n<!-- end -->\n"
    )
    text = report.written(document, results(case()))
    assert text.startswith("# A\n<!-- measured: moments -->\n```\nmoments\nns/element ")
    assert "old" not in text
    assert "a CPU, 2 cores" in text
    assert report.written(text, results(case())) == text
    with pytest.raises(ValueError, match="no table begins with 'moments'"):
        report.written(document, results())


def test_a_part_of_the_tables_leaves_the_others_as_they_are() -> None:
    document = "".join(
        f"<!-- measured: {title} -->\n{title} before\n<!-- end -->\n"
        for title in ("machine", "targets", "moments", "hooks")
    )
    text = report.written(document, results(case()), part=True)
    assert "moments before" not in text
    for title in ("machine", "targets", "hooks"):
        assert f"-->\n{title} before\n<!-- end" in text
    assert re.search(r"moments -->\n```\na CPU, 2 cores, .*\n\nmoments\nns/element ", text)


def test_every_table_of_the_documents_is_one_that_is_measured() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in PAGES]
    titles = re.findall(r"<!-- measured: (.+?) -->", "".join(pages))
    assert {"machine", "targets", "notes"} < set(titles)
    sources = "".join(path.read_text() for path in BENCH.rglob("*.py"))
    assert [title for title in titles if title not in sources] == []


def test_plots(tmp_path: Path) -> None:
    from bench import plots  # and with it matplotlib

    by_size = case("1 KB", facts={"_bytes": 1024.0})
    by_size.table = table(plots.SIZES)
    by_channels = case("1 channel", facts={"_channels": 1.0})
    by_channels.table = table(f"{plots.CHANNELS}: rows")
    some = results(by_size, by_channels)
    paths = plots.draw(some, tmp_path)
    assert [path.name for path in paths] == ["cost-by-size.svg", "cost-by-channels.svg"]
    first = [path.read_text() for path in paths]
    assert all("hookstats: moments" in text for text in first)
    assert [path.read_text() for path in plots.draw(some, tmp_path)] == first


def test_what_a_recorded_step_costs_is_spread_over_all() -> None:
    seconds = [1.0, 1.2, 1.0, 5.0, 1.1, 1.1, 1.0, 4.0]  # the fourth and the eighth are recorded
    found = spread(seconds, 4)
    assert sum(found) == pytest.approx(sum(seconds), rel=0.02)
    assert max(found) < 3


def test_absent_peers_are_named() -> None:
    def absent() -> Any:
        return required("no_such_module", "no-such-package")

    makers = {"read": lambda: Counting([], "read", 1.0), "other": absent}
    measured = measure(table(), "a case", 1, makers, Rounds(0))
    assert measured.case.absent == {"other": "no-such-package is not installed"}
    assert list(measured.case.seconds) == ["read"]
