"""Merger: records of ranks or devices become that of the gathered tensors, as their layouts say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_equal_arrays, assert_same, record_of
from torch import Tensor

from hookstats.records.layout import (
    UNKNOWN,
    Axis,
    Cut,
    Layout,
    Mesh,
    cuts_of,
    mesh_text,
    parse_meshes,
    parse_placements,
    placements_text,
)
from hookstats.records.merge import joined
from hookstats.records.norms import gradient_norm
from hookstats.records.ranks import Merger
from hookstats.records.record import StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.stats.bins import Bins

KEY = ("layer", "output")


def values(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x.view(-1)[::7] = 0.0
    x.view(-1)[3] = torch.nan
    x.view(-1)[-1] = torch.inf
    return x


def record(
    x: Tensor, layout: Layout | None, rank: int, dim: int | None = -1, kind: str = "output"
) -> StepRecord:
    found = record_of({("layer", kind): (x, dim)}, rank=rank)
    return replace(found, sites=tuple(site._replace(layout=layout) for site in found.sites))


def mesh(*axes: tuple[str, int, int], first: int = 0) -> tuple[Mesh, ...]:
    return (Mesh(tuple(Axis(*axis) for axis in axes), first),)


def assert_merged(records: list[StepRecord], x: Tensor, dim: int | None = -1) -> StepRecord:
    merged = Merger()(records)
    whole = record_of({(s.name, s.kind): (x, dim) for s in merged.sites}, rank=0)
    assert_same(replace(merged, rank=0), whole, rtol=1e-12)
    assert merged.rank is None
    again = Merger()(records)
    assert again.moments.tobytes() == merged.moments.tobytes()
    return merged


def test_parts_along_the_channels_are_put_side_by_side() -> None:
    x = values(6, 10)
    pieces = ((0, 1, 6, 7), (2, 3, 4, 5, 8, 9))  # runs of 2, 6 apart, and of 4 and of 2
    records = [
        record(
            x[:, list(piece)],
            Layout(mesh(("tp", rank, 2)), ("Shard(1)",), (6, 10), cuts_of(1, np.array(piece))),
            rank,
        )
        for rank, piece in enumerate(pieces)
    ]
    assert_merged(records, x)
    # A rank that did not watch leaves its channels empty.
    merged = Merger()(records[1:])
    assert merged.sites[0].channels == 10
    assert merged[KEY].count[[0, 1, 6, 7]].tolist() == [0, 0, 0, 0]
    # Of steps without channels it is known how many there are.
    alone = Merger()([each.without_channels() for each in records])
    (site,) = alone.sites
    assert (site.channels, site.shape, alone.channels) == (10, (6, 10), None)
    assert_same(replace(alone, rank=0), replace(record(x, None, 0), channels=None), rtol=1e-12)


def test_cuts_of_more_channels_than_there_are_are_unknown() -> None:
    x = values(6, 10)
    cut = cuts_of(1, np.arange(5))[0]._replace(length=1 << 53)  # as of a damaged run
    layout = Layout(mesh(("tp", 0, 2)), ("Shard(1)",), (6, 10), (cut,))
    (site,) = Merger()([record(x[:, :5], layout, 0)]).sites
    assert (site.channels, site.channel_dim) == (1, None)


@pytest.mark.parametrize("dim", [-1, None])
def test_other_parts_are_merged_and_replicas_count_once(dim: int | None) -> None:
    x = values(8, 5)
    records = [
        record(
            x.chunk(2)[rank // 2],
            Layout(
                mesh(("dp", rank // 2, 2), ("tp", rank % 2, 2)),
                ("Shard(0)", "Replicate"),
                (-1, 5),
                None,
            ),
            rank,
            dim,
        )
        for rank in range(4)
    ]
    merged = assert_merged(records, x, dim)
    assert merged.observed.tolist() == [1]
    assert_merged(records[1:], x, dim)  # another replica stands for rank 0
    with pytest.raises(AssertionError):
        assert_merged(records[2:], x, dim)


@pytest.mark.parametrize("parts", [2, 3])
def test_sites_of_many_channels_beside_others(parts: int) -> None:
    """They are merged as they lie in the records, the others row by row."""
    large, small = values(6, 2100), values(6, 5, seed=1)
    large[:2, 7] = torch.nan  # a channel that one rank has no value of
    records = [
        record_of(
            {
                ("small", "output"): (small.chunk(parts)[rank], -1),
                ("large", "output"): (large.chunk(parts)[rank], -1),
                ("last", "output"): (small.chunk(parts)[rank], None),
            },
            rank=rank,
        )
        for rank in range(parts)
    ]
    whole = record_of(
        {
            ("small", "output"): (small, -1),
            ("large", "output"): (large, -1),
            ("last", "output"): (small, None),
        },
        rank=0,
    )
    merged = Merger()(records)
    assert_same(
        replace(merged, rank=0),
        replace(whole, observed=merged.observed, sites=merged.sites),
        rtol=1e-12,
    )
    assert [site.channels for site in merged.sites] == [5, 2100, 1]


def test_a_batch_along_the_channels_is_put_side_by_side() -> None:
    x = values(9)
    records = [
        record(part, Layout(mesh(("dp", rank, 2)), ("Shard(0)",), (-1,), None), rank, 0)
        for rank, part in enumerate((x[:5], x[5:]))
    ]
    assert_merged(records, x, 0)


def test_a_batch_along_the_channels_that_has_replicas() -> None:
    x, y = values(9), values(6, 3)
    records = [
        record_of(
            {("losses", "output"): (x[:5] if rank < 2 else x[5:], 0), ("last", "output"): (y, 1)},
            rank=rank,
        )
        for rank in range(4)
    ]
    for rank, each in enumerate(records):
        meshes = mesh(("dp", rank // 2, 2), ("tp", rank % 2, 2))
        layout = Layout(meshes, ("Shard(0)", UNKNOWN), None, None)
        whole = Layout(meshes, ("Replicate", "Replicate"), None, None)
        first, last = each.sites
        sites = first._replace(layout=layout), last._replace(layout=whole)
        records[rank] = replace(each, sites=sites)
    merged = Merger()(records)
    expected = record_of({("losses", "output"): (x, 0), ("last", "output"): (y, 1)})
    assert_same(replace(merged, rank=0, sites=expected.sites), expected, rtol=1e-12)
    assert [site.channels for site in merged.sites] == [9, 3]


def test_one_channel_beside_others() -> None:
    x, y = values(4, 3), values(6, 5, seed=1)
    records = [
        record_of(
            {("a", "output"): (x, 1), ("odd", "output"): (y[:, : 3 + rank], 1)},
            rank=rank,
        )
        for rank in range(2)
    ]
    merged = Merger()(records)
    pieces = torch.cat((y[:, :3].reshape(-1), y[:, :4].reshape(-1)))
    expected = record_of(
        {("a", "output"): (torch.cat((x, x)), 1), ("odd", "output"): (pieces, None)}
    )
    assert_same(
        replace(merged, rank=0, sites=expected.sites, channels=None),
        replace(expected, channels=None),
        rtol=1e-12,
    )
    # One channel has the sum of the channels' histograms.
    slots = records[0].channel_bins.slots  # type: ignore[union-attr]
    assert merged.rows.hist.dense_row(3, slots).sum() == expected.tallies[3, 0]


@pytest.mark.parametrize("kind", ["output", "param_grad"])
def test_of_unknown_tensors_those_that_are_equal_to_the_bit_are_replicas(kind: str) -> None:
    x, other = values(4, 3), values(4, 3, seed=1)

    def records(*tensors: Tensor) -> list[StepRecord]:
        return [
            record(one, Layout(mesh(("tp", rank, 4)), (UNKNOWN,), None, None), rank, kind=kind)
            for rank, one in enumerate(tensors)
        ]

    assert Merger()(records(x, x, x, x)).whole.count.item() == int((x.isfinite()).sum())
    twice = Merger()(records(x, other, x, other))
    assert twice.whole.count.item() == int(torch.cat((x, other)).isfinite().sum())
    merge = Merger()  # one for many steps, whose values differ
    for tensors, parts in (((x, x), 1), ((x, other), 2), ((other, other), 1)):
        assert merge(records(*tensors)).whole.count.item() == parts * int(x.isfinite().sum())


def test_without_layouts_modules_see_batches_and_parameters_are_replicas() -> None:
    x = values(8, 5)
    assert_merged([record(part, None, rank) for rank, part in enumerate(x.chunk(2))], x)
    assert_merged([record(x, None, rank, kind="param") for rank in range(3)], x)


def test_tensors_on_meshes_apart_are_of_batches_apart_and_parameters_replicas() -> None:
    x = values(8, 6)

    def records(kind: str) -> list[StepRecord]:
        return [
            record(
                (x if kind == "param" else x.chunk(2)[rank // 2]).chunk(2, 1)[rank % 2],
                Layout(
                    mesh(("tp", rank % 2, 2), first=rank - rank % 2),
                    ("Shard(1)",),
                    (4, 6),
                    (Cut(1, 3 * (rank % 2), 3, 0, 1),),
                ),
                rank,
                kind=kind,
            )
            for rank in range(4)
        ]

    assert Merger()(records("output"))[KEY].count.tolist() == x.isfinite().sum(0).tolist()
    assert Merger()(records("param"))["layer", "param"].count.tolist() == (
        x.isfinite().sum(0).tolist()
    )


def test_channels_that_cannot_be_told_apart_are_one() -> None:
    merged = Merger()([record(values(4, n), None, n) for n in (3, 5)])
    (site,) = merged.sites
    assert (site.channels, site.channel_dim, site.shape) == (1, None, ())
    assert merged.whole.count.item() == sum(int(values(4, n).isfinite().sum()) for n in (3, 5))


def test_ranks_may_have_other_sites() -> None:
    one = record_of({("a", "output"): (values(3, 2), 1), ("b", "output"): (values(3, 2), 1)})
    other = record_of({("c", "output"): (values(3, 4), 1)}, rank=1)
    merged = Merger()([one, other])
    assert list(merged) == [("a", "output"), ("b", "output"), ("c", "output")]
    assert merged.sites == (*one.sites, *other.sites)
    assert np.array_equal(merged.tallies, np.concatenate((one.tallies, other.tallies)))


def test_meshes_and_placements_are_texts() -> None:
    meshes = (*mesh(("dp", 1, 2), ("tp", 0, 4)), *mesh(("c-p.x", 0, 3), first=12))
    assert mesh_text(meshes) == "dp:1/2,tp:0/4@0;c-p.x:0/3@12"
    assert parse_meshes(mesh_text(meshes)) == meshes
    assert mesh_text(mesh(("a,b", 0, 1))) == "a_b:0/1@0"
    placements = ("Shard(0)", "_StridedShard(0, 2)", "Replicate", UNKNOWN)
    assert parse_placements(placements_text(placements)) == placements
    for wrong in ("", "dp", "dp:1/2", "dp:1/2@x", "dp:1/2,@0"):
        with pytest.raises(ValueError, match=r"mesh = '.*': expected such as 'dp:0/2,tp:1/4@0'"):
            parse_meshes(wrong)


@pytest.mark.parametrize(
    ("indices", "cuts"),
    [
        ([4, 5, 6], [(1, 4, 3, 0, 1)]),
        ([0, 1, 4, 5, 8, 9], [(1, 0, 2, 4, 3)]),
        ([0, 2, 4], [(1, 0, 1, 2, 3)]),
        ([0, 1, 4], [(1, 0, 2, 0, 1), (1, 4, 1, 0, 1)]),
        ([0, 3, 4, 9], [(1, 0, 1, 0, 1), (1, 3, 2, 0, 1), (1, 9, 1, 0, 1)]),
        ([], [(1, 0, 0, 0, 1)]),
    ],
)
def test_cuts_are_runs_of_indices(indices: list[int], cuts: list[tuple[int, ...]]) -> None:
    found = cuts_of(1, np.array(indices, np.int64))
    assert list(found) == cuts
    assert Layout((), (), None, found).channels(1).tolist() == indices  # type: ignore[union-attr]


def test_a_layout_with_indices_below_zero_tells_of_no_channels() -> None:
    layout = Layout(mesh(("tp", 0, 2)), ("Shard(1)",), (6, 10), (Cut(1, -3, 5, 0, 1),))
    other = record(values(6, 5), None, 0)
    (site,) = Merger()([record(values(6, 5), layout, 0), replace(other, rank=1)]).sites
    assert site.channels == 1


Tensors = dict[tuple[str, str], tuple[Tensor, int | None]]


def tensors(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 3, generator=generator)
    x[0, 0], x[1, 1], x[2, 2] = torch.nan, torch.inf, 0.0
    return {
        ("a", "output"): (x, 1),
        ("a", "grad_output"): (torch.randn(7, generator=generator) * 1e3, None),
        ("b", "output"): (torch.randn(5, 4, generator=generator), 1),
    }


def one_after_the_other(first: StepRecord, second: StepRecord) -> StepRecord:
    """As a double buffer with two devices has them."""

    def table(one: Table | None, other: Table | None) -> Table:
        assert one is not None
        assert other is not None
        return Table(
            np.concatenate((one.moments, other.moments), axis=1),
            np.concatenate((one.tallies, other.tallies), axis=1),
            SparseCounts.joined([one.hist, other.hist]),
        )

    return StepRecord(
        step=first.step,
        rank=first.rank,
        sites=first.sites + second.sites,
        observed=np.concatenate((first.observed, second.observed)),
        tensors=table(first.tensors, second.tensors),
        channels=table(first.channels, second.channels),
        bins=first.bins,
        channel_bins=first.channel_bins,
    )


@pytest.mark.parametrize("missing", [None, ("a", "output"), ("b", "output")])
@pytest.mark.parametrize(
    ("bins", "channel_bins"), [(BINS, CHANNEL_BINS), (None, CHANNEL_BINS), (None, None)], ids=str
)
def test_they_are_what_one_device_would_have_seen(
    missing: tuple[str, str] | None, bins: Bins | None, channel_bins: Bins | None
) -> None:
    here, there = tensors(0), tensors(1)
    if missing is not None:
        del there[missing]
    record = one_after_the_other(
        record_of(here, bins=bins, channel_bins=channel_bins),
        record_of(there, bins=bins, channel_bins=channel_bins),
    )
    together: Tensors = {
        key: (torch.cat((x, there[key][0])) if key in there else x, dim)
        for key, (x, dim) in here.items()
    }
    got = joined(record)
    expected = record_of(together, bins=bins, channel_bins=channel_bins)
    assert list(got) == list(expected)
    assert got.observed.tolist() == [1 if key == missing else 2 for key in got]
    for name in ("offsets", "tallies"):
        assert_equal_arrays(getattr(got, name), getattr(expected, name))
    for name in ("tensors", "rows"):
        for part in ("offsets", "slots", "counts"):
            mine, other = (getattr(getattr(r, name).hist, part) for r in (got, expected))
            assert_equal_arrays(mine, other)
    np.testing.assert_allclose(got.moments, expected.moments, rtol=1e-5, atol=1e-6)
    of_tensors = got.tensors.moments, expected.tensors.moments
    np.testing.assert_allclose(*of_tensors, rtol=1e-5, atol=1e-6)


def test_a_record_of_one_device_is_left_as_it_is() -> None:
    record = record_of(tensors(0))
    assert joined(record) is record


def test_other_sites_have_other_rows() -> None:
    x = torch.arange(1.0, 7.0).reshape(3, 2)
    gradient, output = {("a", "param_grad"): (x, 1)}, {("a", "output"): (10 * x, 1)}
    for tensors in (gradient, output | gradient, output | gradient, output, gradient):
        record = record_of(tensors)
        expected = None if tensors is output else pytest.approx(float(x.norm()))
        assert gradient_norm(record) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1.0], math.inf),
        ([math.nan, 1.0], math.nan),
        ([math.nan, math.inf], math.nan),
        ([math.inf, math.inf], math.inf),
        ([3.0, 4.0], 5.0),
        ([1e200, 1e200], math.inf),
    ],
)
def test_gradients_that_are_not_finite(values: list[float], expected: float) -> None:
    """Also where the squares are not."""
    x = torch.tensor(values, dtype=torch.float64)
    record = record_of({("a", "param_grad"): (x, None), ("b", "output"): (x, None)})
    assert gradient_norm(record) == pytest.approx(expected, nan_ok=True)
