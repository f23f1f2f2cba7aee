"""The benchmarks' own code: taking turns, figures, and the tables of a file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

sys.path.append(str(ROOT))  # `bench` is a folder there, and not installed

from bench import tables
from bench.measure import Case, Table
from bench.turns import Rounds, interleave

pytestmark = pytest.mark.check


def table(**options: Any) -> Table:
    return Table("moments", "ns/element", 1e9, floor="read", **options)


def case() -> Case:
    """hookstats at twice the floor, in rounds of which the second met a machine half as fast."""
    rounds = [1e-3, 2e-3, 1e-3]
    seconds = {
        "read": rounds,
        "hookstats": [2 * s for s in rounds],
        "eager": [40 * s for s in rounds[:2]],
        "histc": [5 * s for s in rounds],
    }
    return Case(table(parts={"histc": "a histogram"}), "rows fp32", 1e6, seconds, {}, {"MB": 4.0})


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


def test_ratios_are_of_neighbouring_rounds() -> None:
    found = case()
    assert found.ratio("hookstats", "read") == pytest.approx(2)
    assert found.ratio("eager", "hookstats") == pytest.approx(20)  # of the rounds that both had
    assert found.over_floor("hookstats") == pytest.approx(1)
    assert found.value("hookstats") == pytest.approx(2)


def test_a_file_has_its_cases_as_tables(tmp_path: Path) -> None:
    found, path = case(), tmp_path / "deep" / "kept.json"
    tables.save(path, {"machine_info": {"cpu": "A"}}, [found.entry(peer) for peer in found.seconds])
    kept = json.loads(path.read_text())
    assert kept["machine_info"] == {"cpu": "A"}
    assert kept["benchmarks"][1]["stats"] == {"rounds": 3, "min": 0.002, "median": 0.002}
    assert list(tables.lines(kept["machine_info"], kept["benchmarks"]))[2:] == [
        "",
        "moments: rows fp32  ns/element  added  /read  MB",
        "  read                       1      0      1   4",
        "  hookstats                  2      1      2   4",
        "  eager                     60   58.5     40   4",
        "  histc*                     5      4      5   4",
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md", "docs/comparison.md"])
def test_pages_quote_the_measured_costs(page: str) -> None:
    from bench import costs  # with transformers, which `make test` does not install

    measured = json.loads((ROOT / "bench/results/costs.json").read_text())
    (quoted,) = re.findall(
        r"<!-- costs -->\n(.*?)\n<!-- /costs -->", (ROOT / page).read_text("utf-8"), re.DOTALL
    )
    assert quoted == "\n".join(costs.rows(measured))
