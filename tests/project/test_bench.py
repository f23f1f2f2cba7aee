"""The benchmarks' own code: taking turns, figures, and the tables of a file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from time import process_time
from typing import Any

import pytest
import torch
from support.paths import ROOT
from torch import nn

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


def test_a_turn_counts_what_threads_did_since_the_turn_before(tmp_path: Path) -> None:
    from bench import costs  # with transformers, which `make test` does not install

    batch = torch.ones(1, 2), torch.zeros(1, dtype=torch.int64)
    job = costs.Job(lambda: nn.Linear(2, 2), lambda: batch, costs.classes, steps=1)

    def turns() -> Iterator[tuple[int, float]]:
        for least in (3, 1, 2):
            until = process_time() + 0.2
            while process_time() < until:
                """Work between two turns."""
            yield least, 0.0

    took = list(costs.train(job, costs.VARIANTS["no recorder"], str(tmp_path), turns()))
    assert [turn["steps"] for turn in took] == [3, 1, 2]
    assert took[1]["cpu"] < took[2]["cpu"]  # after the warm-up, counting begins anew
    assert took[2]["cpu"] >= 0.2 / 2


LOUD = """
from bench import costs

def attach(model, optimizer, out):
    print("loud", flush=True)
    return print

costs.VARIANTS["default"] = attach
costs.main()
"""


def test_variants_take_turns_whatever_a_recorder_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import costs

    def popen(command: list[str], **options: Any) -> Popen[str]:
        return Popen([command[0], "-c", LOUD, *command[3:]], **options)

    out, variants = tmp_path / "costs.json", ["no recorder", "default"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOOKSTATS_BENCH_SMOKE", "1")
    monkeypatch.setattr(costs, "Popen", popen)
    arguments = ["--only", "ResNet", "--variants", *variants, "--seconds", "2", "--warm-up", "2"]
    monkeypatch.setattr(sys, "argv", ["costs", str(out), *arguments])
    costs.main()
    (training,) = (name for name in costs.TRAININGS if "ResNet" in name)
    assert list(found := json.loads(out.read_text())[training]) == variants
    assert (found["no recorder"]["wall"], found["no recorder"]["cpu"]) == (1, 1)


def test_orders_of_rounds_change_the_neighbours() -> None:
    from bench import costs

    orders = ["".join(costs.order("ABC", number)) for number in range(6)]
    assert orders == ["ABC", "CBA", "BCA", "ACB", "CAB", "BAC"]


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md", "docs/comparison.md"])
def test_pages_quote_the_measured_costs(page: str) -> None:
    from bench import costs

    measured = json.loads((ROOT / "bench/results/costs.json").read_text())
    (quoted,) = re.findall(
        r"<!-- costs -->\n(.*?)\n<!-- /costs -->", (ROOT / page).read_text("utf-8"), re.DOTALL
    )
    assert quoted == "\n".join(costs.rows(measured))
