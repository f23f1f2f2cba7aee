"""hs.compare: where two runs part, and which sites differ most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import healthy, write_run
from support.samples import record_of

import hookstats as hs
from hookstats.insight import comparison
from hookstats.insight.comparison import format_ratio
from hookstats.records.difference import between
from hookstats.records.record import StepRecord
from hookstats.runs.format import HISTOGRAM
from hookstats.runs.part_file import PartFile

HEAD = ("head", "output")
GRAD = ("encoder.1", "grad_output")


def test_sites_are_ranked_by_what_changed_not_by_means_near_zero(tmp_path: Path) -> None:
    """Two ordinary runs have other random values everywhere; one layer is three times larger."""
    a = write_run(tmp_path / "a", *map(healthy, range(4)))
    other = [replace(healthy(step + 100, {GRAD: 3.0}), step=step) for step in range(4)]
    b = write_run(tmp_path / "b", *other)
    found = hs.compare(a, str(b))
    assert found
    assert found.steps == found.differing == [0, 1, 2, 3]
    assert len(found.sites) == len(found.compared) == 6
    worst = found.sites[0]
    assert (worst.name, worst.kind) == GRAD
    assert 2 < worst.ratio < 4
    assert worst.rms[1] == pytest.approx(worst.ratio * worst.rms[0])
    assert found.sites[0].distance > 1.5 * found.sites[1].distance
    distances = [site.distance for site in found.sites]
    assert distances == sorted(distances, reverse=True)
    assert "first differ in step 0, at encoder.0 output" in repr(found)
    assert f"  encoder.1 grad_output: rms x{worst.ratio:.3g}, " in str(found)


def test_the_distance_is_the_mean_over_the_steps(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", *map(healthy, range(4)))
    b = write_run(tmp_path / "b", *(healthy(i, {HEAD: 2.0} if i == 2 else {}) for i in range(4)))
    found = hs.compare(hs.open_run(a), hs.open_run(b))
    (site,) = found.sites
    assert (site.first, site.steps, site.step) == (2, 1, 2)
    assert site.ratio == pytest.approx(2.0)
    assert site.distance == pytest.approx(math.log(2) / 4)
    assert 0.2 < site.moved <= 1
    assert found.first is not None
    assert found.first[0] == 2
    assert not hs.compare(a, b, kinds="grad_output")
    assert not hs.compare(a, b, "encoder.*", "output")
    with pytest.raises(KeyError, match="encoder"):
        hs.compare(a, b, "encodr.0")


def test_the_distance_sees_shapes_that_have_one_rms(tmp_path: Path) -> None:
    """Means, and how heavy the tails are; another sample of one distribution is hardly apart."""
    torch.manual_seed(0)
    x, other = torch.randn(2, 64, 64)
    rms = x.square().mean().sqrt()

    def run(path: str, **values: torch.Tensor) -> Path:
        scaled = {n: v * rms / v.square().mean().sqrt() for n, v in values.items()}
        return write_run(
            tmp_path / path, record_of({(n, "output"): (v, 1) for n, v in scaled.items()})
        )

    a = run("a", sample=x, shifted=x, two=x)
    b = run("b", sample=other, shifted=x.abs(), two=x.sign())
    found = {site.name: site for site in hs.compare(a, b).sites}
    assert list(found) == ["shifted", "two", "sample"]
    size = math.sqrt(2 / math.pi)
    assert found["shifted"].distance == pytest.approx(size, abs=0.05)
    assert found["two"].distance == pytest.approx(1 - size, abs=0.05)
    assert found["sample"].distance < 0.05
    assert all(abs(site.ratio - 1) < 1e-5 for site in found.values())


def test_histograms_do_not_say_whether_tensors_differ(tmp_path: Path) -> None:
    """Samples with the same extremes, sum and sum of squares; and values at an edge of a bin."""
    runs = [
        write_run(tmp_path / name, record_of({("a", "output"): (torch.tensor(x), None)}))
        for name, x in (("a", [9.0, 17, 10, 14, 15]), ("b", [9.0, 17, 11, 12, 16]))
    ]
    assert "equal in 1 steps of 1 sites" in str(hs.compare(*runs))
    exact = between(*(hs.open_run(run)[0] for run in runs))
    assert [one.statistic for one in exact.of(0)] == ["hist"]

    edge = torch.tensor([0.5, 1.0, 2.0])
    c, d = (
        write_run(tmp_path / name, record_of({("a", "output"): (x, None)}))
        for name, x in (("c", edge), ("d", edge * (1 - 1e-6)))
    )
    assert hs.compare(c, d).sites[0].moved > 0
    assert not hs.compare(c, d, rtol=1e-5)


def test_histograms_are_read_of_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = write_run(tmp_path / "a", *map(healthy, range(5)))
    b = write_run(tmp_path / "b", *(healthy(i, {HEAD: 1.0 + i // 2}) for i in range(5)))
    read: list[str] = []

    def noting(part: PartFile, columns: Sequence[str], *groups: Any) -> Any:
        read.extend(columns)
        return whole(part, columns, *groups)

    whole = PartFile.read
    monkeypatch.setattr(PartFile, "read", noting)
    assert not hs.compare(a, a)
    assert "mean" in read
    assert not {*HISTOGRAM} & {*read}
    found = hs.compare(a, b)
    assert found.first is not None
    assert found.first[1][0].statistic == "hist"
    (site,) = found.sites
    read.clear()
    assert site.step == 4
    assert 0.2 < site.moved <= 1
    assert {*HISTOGRAM} <= {*read}


def test_what_moved_in_a_deleted_step_is_unknown(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", healthy(0))
    b = write_run(tmp_path / "b", healthy(0, {HEAD: 2.0}))
    (site,) = hs.compare(a, b).sites
    for part in (b / "tensors").iterdir():
        part.unlink()
    assert math.isnan(site.moved)
    assert site.ratio == pytest.approx(2.0)


def test_a_step_may_lack_what_is_compared(tmp_path: Path) -> None:
    x = torch.ones(4, 4)

    def step(number: int, value: float) -> StepRecord:
        """The second layer comes in odd steps alone."""
        names = ("a", "b") if number % 2 else ("a",)
        return record_of({(name, "output"): (x * value, 1) for name in names}, number)

    a, b = (
        write_run(tmp_path / name, *(step(number, value) for number in range(4)))
        for name, value in (("a", 1.0), ("b", 2.0))
    )
    found = hs.compare(a, b, "b")
    assert found.compared == {("b", "output")}
    assert (found.steps, found.differing) == ([0, 1, 2, 3], [1, 3])
    with pytest.raises(KeyError, match="2 names, such as 'a', 'b'"):
        hs.compare(a, b, "c")
    with pytest.raises(KeyError, match="'b' has the kinds 'output'"):
        hs.compare(a, b, "b", "grad_output")


def test_what_only_one_run_has_comes_first(tmp_path: Path) -> None:
    x = torch.ones(4, 4)
    bad = x.clone()
    bad[0, 0] = torch.nan
    scaled = {("much", "output"): (x * 1e6, 1), ("nan", "output"): (bad, 1)}
    runs = [
        write_run(tmp_path / "a", record_of(dict.fromkeys([*scaled, ("lost", "output")], (x, 1)))),
        write_run(tmp_path / "b", record_of(scaled)),
    ]
    found = hs.compare(*runs)
    assert [site.name for site in found.sites] == ["nan", "lost", "much"]
    assert [site.distance for site in found.sites[:2]] == [math.inf, math.inf]
    assert math.isnan(found.sites[1].ratio)
    assert [site.name for site in hs.compare(*runs, common=True).sites] == ["nan", "much"]


def test_steps_that_only_one_run_has_are_a_difference(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", *map(healthy, range(3)))
    b = write_run(tmp_path / "b", *map(healthy, range(5)))
    found = hs.compare(a, b)
    assert found
    assert found.only == [(str(b), [3, 4])]
    assert f"equal in 3 steps of 6 sites; only {b} has 2 steps, 3 to 4" in str(found)
    assert not hs.compare(a, b, common=True)


def test_modules_may_have_other_names_in_the_other_run(tmp_path: Path) -> None:
    """Of two implementations, names that are not in the mapping may be in both for other things."""
    torch.manual_seed(0)
    x, y, weight, other = torch.randn(4, 8, 6).unbind()

    def run(path: str, **values: torch.Tensor) -> Path:
        found = {
            (name.replace("_", "."), "param_grad" if "weight" in name else "output"): (value, 1)
            for name, value in values.items()
        }
        return write_run(tmp_path / path, record_of(found, 0))

    a = run("a", x=x, y=y, y_weight=weight, z=other)
    names = {"x": "z", "y": "x"}
    found = hs.compare(a, run("b", z=x, x=y, x_weight=weight, y=other, y_weight=other), names)
    assert not found
    assert found.compared == {("x", "output"), ("y", "output"), ("y.weight", "param_grad")}
    found = hs.compare(a, run("c", x=y, z=x + 1, x_weight=other), names)
    assert {site.name for site in found.sites} == {"x", "y.weight"}
    with pytest.raises(KeyError, match="nothing"):
        hs.compare(a, a, {"nothing": "none"})
    with pytest.raises(ValueError, match="another name of B for each"):
        hs.compare(a, a, {"x": "z", "y": "z"})


@pytest.mark.parametrize(
    ("names", "run", "hint"),
    [
        ({"layer.3": "up", "layer.1": "down"}, "a", "did you mean 'layer.1'"),
        ({"layer.1": "upp"}, "b", "did you mean 'up'"),
        ({"layer": "up", "layer.1": "dwn"}, "b", "did you mean 'down'"),
    ],
)
def test_a_mapping_names_what_either_run_lacks(
    tmp_path: Path, names: dict[str, str], run: str, hint: str
) -> None:
    x = torch.ones(2, 2)
    write_run(tmp_path / "a", record_of({("layer.1", "output"): (x, 1)}))
    write_run(tmp_path / "b", record_of({(name, "output"): (x, 1) for name in ("up", "down")}))
    with pytest.raises(KeyError, match=f"{run} lacks: {hint}"):
        hs.compare(tmp_path / "a", tmp_path / "b", names)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 15])
def test_steps_are_compared_together_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Sites come, go and change places; some steps have channels, and some are in one run alone."""
    monkeypatch.setattr(comparison, "_AT_ONCE", at_once)

    def step(number: int, seed: int) -> StepRecord:
        generator = torch.Generator().manual_seed(100 * number + seed * (number % 3))
        names = ["a", "b", "c", "d"][number % 2 :][:: -1 if seed and number % 5 == 0 else 1]
        values = {name: torch.randn(4, 3, generator=generator) for name in names}
        shape = (3, 4) if seed and number == 4 else (4, 3)
        record = record_of(
            {(n, "output"): (x.reshape(shape), 1) for n, x in values.items()}, number
        )
        return record if number in (6, 7, 8 + seed) else record.without_channels()

    a = write_run(tmp_path / "a", *(step(number, 0) for number in range(12) if number != 10))
    b = write_run(tmp_path / "b", *(step(number, 1) for number in range(12) if number != 2))
    runs = hs.open_run(a), hs.open_run(b)
    both = [step for step in range(12) if step not in (2, 10)]
    ones = {n: between(runs[0][n], runs[1][n], 1e-9) for n in both}
    seen = []
    for found in comparison.comparisons(*runs, both, 1e-9):
        many = len(found.keys)
        for i, number in enumerate(found.steps):
            seen.append(number)
            one = ones[number]
            there = np.flatnonzero(found.there[i * many : (i + 1) * many])
            place = {found.keys[site]: i * many + site for site in there.tolist()}
            assert place.keys() == set(one.keys)
            for n, key in enumerate(one.keys):
                histograms = "hist", "channel_hist"
                expected = [each for each in one.of(n) if each.statistic not in histograms]
                assert found.of(place[key]) == expected
                np.testing.assert_array_equal(found.rms[place[key]], one.rms[n])
                np.testing.assert_array_equal(found.distance[place[key]], one.distance[n])
    assert seen == both

    whole = hs.compare(a, b, rtol=1e-9)
    assert len(whole.sites) == 4
    for site in whole.sites:
        key = site.name, site.kind
        places = {n: one.keys.index(key) for n, one in ones.items() if key in one.keys}
        distances = {n: ones[n].distance[at] for n, at in places.items() if ones[n].of(at)}
        assert (site.first, site.steps) == (min(distances), len(distances))
        assert site.step == max(distances, key=lambda n: distances[n])
        assert site.distance == pytest.approx(sum(distances.values()) / len(both))
        worst, at = ones[site.step], places[site.step]
        np.testing.assert_array_equal(site.rms, worst.rms[at])
        np.testing.assert_array_equal(site.moved, worst.moved[at])
    first = ones[whole.differing[0]]
    assert whole.first == (whole.differing[0], next(filter(None, map(first.of, range(9)))))


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (35.21, "x35.2"),
        (1.125, "+12.5%"),
        (0.75, "-25.0%"),
        (0.01, "x0.01"),
        (1 + 2e-7, "+2e-07"),
        (1.0, "same"),
        (0.0, "to 0"),
        (math.inf, "from 0"),
        (math.nan, ""),
    ],
)
def test_ratios_are_written_for_people(ratio: float, said: str) -> None:
    assert format_ratio(ratio) == said
