"""hookstats compare: where two runs part, with the exit codes of diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.commands import call, healthy, write_run
from support.samples import CHANNEL_BINS, record_of, sample

from hookstats.records.sparse import SparseCounts

HEAD = ("head", "output")
GRAD = ("encoder.1", "grad_output")


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a", *map(healthy, range(5)))


def test_equal_runs(a: Path, tmp_path: Path) -> None:
    b = write_run(tmp_path / "b", *map(healthy, range(5)))
    assert call("compare", a, b) == (0, f"{a} and {b} are equal: 5 steps of 6 sites\n", "")


def test_runs_part_at_the_first_step_and_its_first_site_in_order(a: Path, tmp_path: Path) -> None:
    b = write_run(
        tmp_path / "b",
        *map(healthy, range(2)),
        healthy(2, {HEAD: 2.0, GRAD: 1.5}),
        healthy(3, {HEAD: 1.01}),
        healthy(4),
    )
    result = call("compare", a, b)
    assert result.code == 1
    assert result.err == ""
    assert result.words[:3] == [
        f"{a} and {b} first differ in step 2, at",
        "head output:",
        "statistic channel A B relative",
    ]
    rows = {words.split()[0]: words.split()[1:] for words in result.words[3:9]}
    site = healthy(2)[HEAD]
    channel, first, second, relative = rows["max"]
    assert float(first) == pytest.approx(float(site.max[int(channel)]), rel=1e-3)
    assert float(second) == pytest.approx(2 * float(site.max[int(channel)]), rel=1e-3)
    assert relative == "5.0e-01"
    assert rows["hist"][0] == rows["hist"][1] != "0"
    after = result.words.index("2 of 6 sites differ, in 2 of 5 steps; the largest differences:")
    rows_of_sites = [words.split() for words in result.words[after + 3 :]]
    assert [row[:5] for row in rows_of_sites] == [
        ["head", "output", "2", "2", "2"],
        ["encoder.1", "grad_output", "2", "1", "2"],
    ]
    assert [row[7] for row in rows_of_sites] == ["x2", "+50.0%"]
    moved = [float(row[8].removesuffix("%")) for row in rows_of_sites]
    assert all(20 < share <= 100 for share in moved)


def test_what_is_chosen_is_compared(a: Path, tmp_path: Path) -> None:
    b = write_run(tmp_path / "b", *(healthy(step, {HEAD: 2.0}) for step in range(5)))
    assert call("compare", a, b, "--layer", "encoder.*").out == (
        f"{a} and {b} are equal: 5 steps of 3 sites\n"
    )
    assert call("compare", a, b, "--kind", "grad_output", "--kind", "param_grad").code == 0
    assert call("compare", a, b, "--layer", "encoder.*", "--layer", "head").code == 1
    unknown = call("compare", a, b, "--layer", "encodr.0")
    assert unknown.code == 2
    assert "'encoder.0'" in unknown.err


def test_rtol_forgives_moments(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", healthy(0))
    b = write_run(tmp_path / "b", healthy(0, {HEAD: 1 + 1e-6}))
    assert call("compare", a, b).code == 1
    assert call("compare", a, b, "--rtol", "1e-5", "--layer", "head").out == (
        f"{a} and {b} are equal to 1e-05: 1 step of 2 sites\n"
    )
    assert call("compare", a, b, "--rtol", "-1") == (
        2,
        "",
        "hookstats compare: error: rtol = -1.0: expected 0 or more\n",
    )


def test_steps_that_only_one_has_are_a_difference(a: Path, tmp_path: Path) -> None:
    b = write_run(tmp_path / "b", *map(healthy, range(8)))
    for command in ((a, b), (b, a)):
        assert call("compare", *command) == (
            1,
            f"only {b} has 3 steps, 5 to 7\nthe 5 steps of 6 sites that both have are equal\n",
            "",
        )
    assert call("compare", a, b, "--common").code == 0
    apart = write_run(tmp_path / "apart", healthy(9))
    result = call("compare", a, apart)
    assert result.code == 1
    assert result.words == [f"only {a} has 5 steps, 0 to 4", f"only {apart} has step 9"]


def test_ranks_are_compared_merged_or_one_by_one(tmp_path: Path) -> None:
    runs = []
    for name, of_rank_1 in (("a", 1), ("b", 7)):
        out = write_run(tmp_path / name, sample(0))
        runs.append(write_run(out, sample(of_rank_1, rank=1), sample(8, rank=1), rank=1))
    result = call("compare", *runs)
    assert result.code == 1
    assert result.words[:2] == [
        f"only {runs[0]} has step 1",
        f"only {runs[1]} has step 7",
    ]
    assert call("compare", *runs, "--rank", "0").code == 0
    assert call("compare", *runs, "--rank", "1", "--common").code == 0
    unknown = call("compare", *runs, "--rank", "2")
    assert unknown == (2, "", f"hookstats compare: error: --rank 2: {runs[0]} has the ranks 0, 1\n")


def test_the_list_may_be_shortened(a: Path, tmp_path: Path) -> None:
    everywhere = dict.fromkeys(healthy(0), 2.0)
    b = write_run(tmp_path / "b", *(healthy(step, everywhere) for step in range(5)))
    result = call("compare", a, b, "--limit", "2")
    assert result.code == 1
    assert result.words[-1] == "... and 4 more (--limit)"
    assert len(call("compare", a, b).words) == len(result.words) + 3


def test_other_bins_are_said(a: Path, tmp_path: Path) -> None:
    tensors = healthy(0).tensors._replace(hist=SparseCounts.empty(6))
    coarse = replace(healthy(0), bins=CHANNEL_BINS, tensors=tensors)
    b = write_run(tmp_path / "b", coarse)
    result = call("compare", a, b, "--common")
    assert result.code == 0
    assert result.words[0].startswith("bins differ (LogBins(")
    assert result.words[0].endswith("): histograms are not compared")


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"[bold]{name}",
            record_of({("layer[red]", "output[:smile:]"): (torch.ones(4, 4) * value, 1)}),
        )
        for name, value in (("a", 1.0), ("b", 2.0))
    ]
    result = call("compare", *runs)
    assert result.words[0] == f"{runs[0]} and {runs[1]} first differ in step 0, at"
    assert result.words[1] == "layer[red] output[:smile:]:"
    assert result.words[-1].startswith("layer[red] output[:smile:] 0 1 0 1.00 2.00 x2 ")
