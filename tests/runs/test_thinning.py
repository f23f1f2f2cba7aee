"""reductions(): which steps go first, of parts that are made up."""

from __future__ import annotations

from hookstats.runs.format import PartName
from hookstats.runs.thinning import Written, reductions


def thinned(
    steps: list[list[int]], most: int, incidents: tuple[tuple[int, int], ...] = ()
) -> list[int]:
    """The steps that stay of parts in which a step takes ten bytes."""
    parts = [Written(PartName(0, i, 0, s[0]), tuple(s), 10 * len(s)) for i, s in enumerate(steps)]
    left = {part.name.number: part for part in parts}
    for reduction in reductions(parts, incidents, most):
        if sum(part.size for part in left.values()) <= most:
            break
        number = reduction.part.name.number
        left[number] = left[number]._replace(steps=reduction.steps, size=10 * len(reduction.steps))
    return [step for part in left.values() for step in part.steps]


def blocks(count: int, each: int, every: int = 1) -> list[list[int]]:
    return [[every * (i * each + j) for j in range(each)] for i in range(count)]


def test_old_steps_go_first_by_powers_of_two() -> None:
    found = thinned(blocks(16, 4), 320)
    assert found[-8:] == list(range(56, 64))  # the newest quarter
    assert len(found) == 32
    older = [step for step in found if step < 56]
    assert all(step % 2 == 0 for step in older)
    fewer = thinned(blocks(16, 4), 160)
    assert set(fewer) <= set(found)
    assert fewer[0] == 0


def test_steps_between_which_others_lie_are_thinned_in_the_same_way() -> None:
    found = thinned(blocks(16, 4, every=10), 320)
    assert found == [10 * step for step in thinned(blocks(16, 4), 320)]


def test_steps_of_incidents_stay_the_latest_first() -> None:
    found = set(thinned(blocks(32, 4), 640, ((9, 11), (50, 54))))
    assert found >= {9, 10, 11, *range(50, 55)}
    found = set(thinned(blocks(32, 4), 120, ((9, 11), (50, 54))))
    assert found >= set(range(50, 55))
    assert not found >= {9, 10, 11}


def test_the_newest_part_stays_whatever_it_takes() -> None:
    assert thinned(blocks(4, 4), 1) == [12, 13, 14, 15]
    last = list(reductions([Written(PartName(0, 0, 0, 0), (0, 1), 20)], (), 1))
    assert last == []
