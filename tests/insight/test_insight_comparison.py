"""hs.compare: where two runs part, and which sites differ most."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import healthy, write_run
from support.differences import compare
from support.samples import record_of

import hookstats as hs
from hookstats.insight import comparison
from hookstats.insight.comparison import format_ratio
from hookstats.records.record import StepRecord

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
    assert site.distance == pytest.approx((math.log(2) + site.moved) / 4)
    assert found.first is not None
    assert found.first[0] == 2
    assert not hs.compare(a, b, kinds="grad_output")
    assert not hs.compare(a, b, "encoder.*", "output")
    with pytest.raises(KeyError, match="encoder"):
        hs.compare(a, b, "encodr.0")


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
    seen = []
    for found in comparison.comparisons(*runs, both, 1e-9):
        many = len(found.keys)
        for i, number in enumerate(found.steps):
            seen.append(number)
            one = compare(runs[0][number], runs[1][number], 1e-9)
            there = np.flatnonzero(found.there[i * many : (i + 1) * many])
            place = {found.keys[site]: i * many + site for site in there.tolist()}
            assert place.keys() == set(one.keys)
            for n, key in enumerate(one.keys):
                assert found.of(place[key]) == one.of(n)
                np.testing.assert_array_equal(found.rms[place[key]], one.rms[n])
                np.testing.assert_array_equal(found.moved[place[key]], one.moved[n])
    assert seen == both


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
