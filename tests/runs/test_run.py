"""open_run and Run: what was written comes back, while it is written, too; what is no run."""

from __future__ import annotations

import json
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import write_run
from support.samples import BINS, CHANNEL_BINS, assert_same, record_of, sample, tensors

from hookstats.records.ranks import Merger
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.runs.format import FORMAT
from hookstats.runs.parts import Parts
from hookstats.runs.run import open_run
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import LinearBins, LogBins

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}


@pytest.mark.parametrize("bins", [None, BINS, LinearBins(5, -1.0, 1.0)])
@pytest.mark.parametrize("channel_bins", [None, CHANNEL_BINS, LogBins(0, -3, 3)])
def test_records_come_back(tmp_path: Path, bins, channel_bins) -> None:
    records = [sample(step, bins=bins, channel_bins=channel_bins) for step in range(3)]
    out = tmp_path / "lr=0.1 and 层"
    writer = RunWriter(out, {"bins": bins, "channel_bins": channel_bins})
    for record in records:
        writer.write(record)
    writer.close()
    run = open_run(str(out))
    assert (run.bins, run.channel_bins) == (bins, channel_bins)
    for record in records:
        assert_same(run[record.step], record)


FLOATS = st.floats(width=64)
ROWS = st.lists(
    st.tuples(
        st.tuples(FLOATS, st.floats(0, 1e300, allow_subnormal=False), FLOATS, FLOATS, FLOATS),
        st.tuples(*[st.integers(0, 2**62)] * 5),
    ),
    max_size=5,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sites=st.lists(ROWS, max_size=4))
def test_any_state_comes_back(tmp_path_factory, sites) -> None:
    rows = [row for site in sites for row in site]
    moments = np.array([moments for moments, _ in rows]).reshape(-1, 5)
    tallies = np.array([tallies for _, tallies in rows], np.int64).reshape(-1, 5)
    lengths = [len(site) for site in sites]
    firsts = np.cumsum([0, *lengths])[:-1][np.array(lengths, bool)]
    table = Table(moments.T.copy(), tallies.T.copy(), SparseCounts.empty(len(rows)))
    some = [site for site in sites if site]
    record = StepRecord(
        step=0,
        rank=0,
        sites=tuple(SiteInfo(f"{i}", "output", len(s), 0, (9,), "b") for i, s in enumerate(some)),
        observed=np.arange(len(some)),
        tensors=table.chosen(firsts),
        channels=table,
        bins=None,
        channel_bins=None,
    )
    out = tmp_path_factory.mktemp("run")
    write_run(out, record)
    assert_same(open_run(out)[0], record)


def test_a_step_without_sites_is_a_step(tmp_path: Path) -> None:
    records = [sample(0), record_of({}, step=1), sample(2)]
    writer = RunWriter(tmp_path, HEADER)
    for record in records:
        writer.write(record)
    writer.close()
    run = open_run(tmp_path)
    assert run.steps == [0, 1, 2]
    for record in records:
        assert_same(run[record.step], record)
    assert run.table().num_rows == 2 * len(tensors())
    write_run(tmp_path / "only", record_of({}, step=1))
    assert_same(open_run(tmp_path / "only")[1], record_of({}, step=1))


def test_a_step_back_makes_void_what_was_recorded_from_there_on(tmp_path: Path) -> None:
    again = replace(sample(100), step=5)
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=3600)
    for record in (sample(3), sample(5), sample(9), sample(12)):
        writer.write(record)
    writer.flush()
    run = open_run(tmp_path)
    assert run.steps == [3, 5, 9, 12]
    assert_same(run[5], sample(5))
    writer.write(again)
    writer.write(sample(7))
    writer.flush()
    for fresh in (run, open_run(tmp_path)):
        assert fresh.steps == list(fresh) == [3, 5, 7]
        assert len(fresh) == 3
        assert 7 in fresh
        assert 9 not in fresh
        assert_same(fresh[5], again)
        assert_same(fresh[3], sample(3))
        assert fresh.table()["step"].to_pylist() == np.repeat([3, 5, 7], len(tensors())).tolist()
        assert fresh["whole", "*"]["whole", "param_grad"].steps.tolist() == [3, 5, 7]
    writer.write(sample(3))  # within one part, too
    writer.write(sample(2))
    writer.close()
    assert run.steps == [2]


def test_ranks(tmp_path: Path) -> None:
    write_run(tmp_path, *(sample(step, 1) for step in range(4)), rank=1)
    write_run(tmp_path, *(sample(step, 0) for step in range(3)))
    run = open_run(tmp_path)
    assert run.ranks == [0, 1]
    assert run.steps == [0, 1, 2, 3]
    assert (run.ranks_of(2), run.ranks_of(3)) == ([0, 1], [1])
    assert run[2].rank is None
    assert run.table().column("rank").unique().to_pylist() == [None]
    for rank in (0, 1):
        one = run.of_rank(rank)
        assert (one.rank, one.ranks, one.steps) == (rank, [rank], list(range(3 + rank)))
        assert_same(one[2], sample(2, rank))
        assert one.table().column("rank").unique().to_pylist() == [rank]
    with pytest.raises(KeyError, match=r"step 3: .* has 3 steps of rank 0 in 0\.\.2"):
        run.of_rank(0)[3]
    with pytest.raises(KeyError, match=r"step 4: .* has 4 steps in 0\.\.3"):
        run[4]
    with pytest.raises(FileNotFoundError, match="rank 7 has written no header"):
        run.of_rank(7)


def test_each_call_sees_what_was_written_since(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)
    run = open_run(tmp_path)
    assert run.steps == run.ranks == []
    assert run.table().num_rows == 0
    assert run.coverage is None
    with pytest.raises(KeyError, match=r"step 0: .* has no steps yet"):
        run[0]
    for step in range(3):
        writer.write(sample(step))
        assert_same(run[step], sample(step))
        assert run.steps == list(range(step + 1))
        assert run.table().num_rows == (step + 1) * len(tensors())
    writer.close({"sites": 7})
    assert run.coverage == {"sites": 7}


def test_a_reader_beside_a_writer_sees_whole_records_only(tmp_path: Path) -> None:
    records = [sample(step) for step in range(30)]
    writer = RunWriter(tmp_path, HEADER, seconds_per_part=0)

    def write() -> None:
        for record in records:
            writer.write(record)

    thread = threading.Thread(target=write)
    thread.start()
    seen, writing = [0], True
    while writing:
        writing = thread.is_alive()  # once more after its end
        run = open_run(tmp_path)
        seen.append(len(run))
        assert run.steps[: seen[-1]] == list(range(seen[-1]))
        for step in run.steps[-2:]:
            assert_same(run[step], records[step])
        assert run.table().num_rows >= seen[-1] * len(tensors())
    assert seen == sorted(seen)
    assert seen[-1] == len(records)


def test_table_has_a_row_a_site_and_one_dictionary(tmp_path: Path) -> None:
    write_run(
        tmp_path, sample(0), sample(1), record_of({("new", "output"): tensors()[("", "output")]}, 2)
    )
    table = open_run(tmp_path).table()
    keys = list(zip(table["site"].to_pylist(), table["kind"].to_pylist(), strict=True))
    assert keys == [*tensors(), *tensors(), ("new", "output")]
    assert len({tuple(chunk.dictionary.to_pylist()) for chunk in table["site"].chunks}) == 1
    assert table.column_names == [
        *("step", "rank", "site", "kind", "channel_dim", "channels", "shape", "dtype"),
        *("observed", "dead", "count", "nan", "posinf", "neginf", "zero"),
        *("mean", "m2", "min", "max", "l1", "hist_slots", "hist_counts"),
        *("global_shape", "shards", "mesh", "placements"),
    ]


def test_the_table_of_channels_has_a_row_a_channel(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(1))
    run = open_run(tmp_path)
    table = run.table(channels=True)
    assert table.column_names == [
        *("step", "rank", "site", "kind", "channel", "count", "nan", "posinf", "neginf", "zero"),
        *("mean", "m2", "min", "max", "l1", "hist_slots", "hist_counts"),
    ]
    for step in (0, 1):
        rows = [row for row in table.to_pylist() if row["step"] == step]
        channels = sample(step).channels
        assert channels is not None
        for name in ("count", "nan", "m2", "max"):
            np.testing.assert_array_equal([row[name] for row in rows], channels.column(name))
        owners = [
            (site.name, site.kind, c) for site in sample().sites for c in range(site.channels)
        ]
        assert [(row["site"], row["kind"], row["channel"]) for row in rows] == owners


def test_some_columns_are_read_alone(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(1))
    run = open_run(tmp_path)
    assert run.table(["step", "max"]).equals(run.table().select(["step", "max"]))
    with pytest.raises(ValueError, match=r"columns has 'mex': .*did you mean 'max'"):
        run.table(["mex"])


@pytest.mark.check
def test_to_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    write_run(tmp_path, sample(0), sample(1))
    frame = open_run(tmp_path).to_pandas()
    assert list(frame["step"]) == [0] * len(tensors()) + [1] * len(tensors())
    row = frame[(frame.step == 1) & (frame.kind == "param_grad")].iloc[0]
    stats = sample(1)["whole", "param_grad"]
    assert row["m2"] / row["count"] == stats.var[0]
    assert not [name for name in frame if isinstance(frame[name].iloc[0], (list, np.ndarray))]
    channels = open_run(tmp_path).to_pandas(channels=True)
    assert len(channels) == open_run(tmp_path).table(channels=True).num_rows


@pytest.mark.check
def test_to_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    write_run(tmp_path, sample(0), record_of({("new", "output"): tensors()["", "output"]}, 1))
    run = open_run(tmp_path)
    frame = polars.DataFrame(run)
    assert frame.columns == run.table().column_names
    assert frame["site"].to_list() == run.table()["site"].to_pylist()
    assert frame["count"].to_list() == run.table()["count"].to_pylist()


def test_the_arrow_stream_is_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(1), replace(sample(2), step=1))
    run = open_run(tmp_path)
    assert str(pa.table(run).to_pylist()) == str(run.table().to_pylist())  # NaN is not NaN
    assert pa.concat_tables(run.batches()).num_rows == run.table().num_rows == 2 * len(tensors())


def test_the_table_has_whole_tensors(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(1))
    for row in open_run(tmp_path).table().to_pylist():
        stats = sample(row["step"])[row["site"], row["kind"]].per_tensor()
        for name in ("count", "nan", "posinf", "neginf", "zero", "min", "max"):
            assert row[name] == getattr(stats, name)[0], name
        if row["count"]:
            np.testing.assert_allclose(row["mean"], stats.mean[0], rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(row["m2"] / row["count"], stats.var[0], rtol=1e-12)
        whole = sample(row["step"])[row["site"], row["kind"]]
        assert row["dead"] == whole.dead.sum()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path = '.*missing': no such run"):
        open_run(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"path = '.*': expected a run directory, with run\.json"):
        open_run(tmp_path)
    with pytest.raises(ValueError, match=r"path = '.*': expected a run directory"):
        open_run(__file__)


@pytest.mark.parametrize(
    "content",
    [b"", b"7", b"[]", b"{}", b"\xff", b'{"format": 1', b'{"format": "x"}'],
)
def test_a_damaged_run_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json: damaged, or not written by hookstats"):
        open_run(tmp_path)


def test_other_formats_are_refused_as_such(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0))
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(ValueError, match=r"run\.json: format 2 is newer .* reads format 1: pip"):
        open_run(tmp_path)
    path.write_text('{"format_version": 3}')
    says = r"run\.json: written by a hookstats from before the release, .*: record the run again"
    with pytest.raises(ValueError, match=says):
        open_run(tmp_path)
    with pytest.raises(ValueError, match=says):
        RunWriter(tmp_path, HEADER, append=True)
    RunWriter(tmp_path, HEADER, overwrite=True).close()
    assert open_run(tmp_path).steps == []


def test_a_representation_says_what_the_run_holds(tmp_path: Path) -> None:
    def shown(path: Path) -> str:
        text = repr(open_run(path))
        start = f"Run({str(path)!r}, "
        assert text.startswith(start)
        return text.removeprefix(start).removesuffix(")")

    sites = len(sample(0))
    RunWriter(tmp_path / "empty", HEADER).close()
    assert shown(tmp_path / "empty") == "no steps yet"
    write_run(tmp_path / "one", sample(7))
    assert shown(tmp_path / "one") == f"step 7, {sites} sites"
    write_run(tmp_path / "run", sample(0), sample(4))
    assert shown(tmp_path / "run") == f"2 steps, 0 to 4, {sites} sites"
    write_run(tmp_path / "run", sample(0, rank=2), rank=2)
    assert shown(tmp_path / "run") == f"2 steps, 0 to 4, {sites} sites, ranks 0, 2"
    for part in (tmp_path / "run" / "tensors").iterdir():
        part.write_bytes(b"damaged")
    assert shown(tmp_path / "run").startswith("unreadable: ")


def test_notebooks_complete_steps_and_sites(tmp_path: Path) -> None:
    write_run(tmp_path, sample(0), sample(4))
    run = open_run(tmp_path)
    keys = list(sample(4))
    assert run._ipython_key_completions_() == [0, 4, *keys]
    assert run["*", "*"]._ipython_key_completions_() == keys
    RunWriter(tmp_path / "empty", HEADER).close()
    assert open_run(tmp_path / "empty")._ipython_key_completions_() == []


def test_a_mistyped_path_names_similar_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "demo", sample(0))
    (tmp_path / "dmoo").mkdir()  # similar, but no run
    with pytest.raises(FileNotFoundError) as error:
        open_run(tmp_path / "dmo")
    right = str(tmp_path / "demo")
    assert str(error.value) == (
        f"path = {str(tmp_path / 'dmo')!r}: no such run; did you mean {right!r}?"
    )
    with pytest.raises(FileNotFoundError, match=r"no such run$"):
        open_run(tmp_path / "nowhere" / "demo")


RANKS = 3
STEPS = 4


def write(out: Path, records: list[list[StepRecord]], seconds: float = 0.0) -> None:
    """By rank and step; `seconds`: 0 for a part per record."""
    for rank, of_rank in enumerate(records):
        writer = RunWriter(out, HEADER, rank=rank, seconds_per_part=seconds)
        for record in of_rank:
            writer.write(record)
        writer.close()


def samples() -> list[list[StepRecord]]:
    return [[sample(step, rank) for step in range(STEPS)] for rank in range(RANKS)]


def merged(*records: StepRecord) -> StepRecord:
    return Merger()(records)


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_what_is_read_is_what_records_merge_to(tmp_path: Path, seconds: float) -> None:
    records = samples()
    write(tmp_path, records, seconds)
    run = open_run(tmp_path)
    for step in (2, 0, 3, 1, 1):
        assert_same(run[step], merged(*(of_rank[step] for of_rank in records)), rtol=1e-14)
        # To the bit what merging the records of the ranks gives.
        of_ranks = [run.of_rank(rank)[step] for rank in range(RANKS)]
        assert run[step].moments.tobytes() == merged(*of_ranks).moments.tobytes()


def test_a_part_that_goes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = samples()
    write(tmp_path, records)
    run = open_run(tmp_path)
    record = Parts.record

    def slow(self: Parts, where, *, channels: bool = True):  # type: ignore[no-untyped-def]
        if where.part.rank == 0:
            for path in (tmp_path / "tensors").glob("00001-000002-*"):
                path.unlink()
        return record(self, where, channels=channels)

    monkeypatch.setattr(Parts, "record", slow)
    assert_same(run[2], merged(records[0][2], records[2][2]), rtol=1e-14)


def damage(out: Path, column: str) -> None:
    """Change a byte of a column of rank 1's part of step 2."""
    (path,) = (out / "tensors").glob("00001-000002-*")
    metadata = pq.read_metadata(path).row_group(0)
    chunks = [metadata.column(i) for i in range(metadata.num_columns)]
    (chunk,) = [c for c in chunks if c.path_in_schema.split(".")[0] == column]
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("column", ["mean", "hist_slots"])
def test_a_damaged_part_is_named_or_left_out(tmp_path: Path, column: str) -> None:
    records = samples()
    write(tmp_path, records)
    damage(tmp_path, column)
    with pytest.raises(ValueError, match=r"00001-000002-\S+\.parquet: damaged"):
        open_run(tmp_path)[2]
    run = open_run(tmp_path, skip_damaged=True)
    with pytest.warns(RuntimeWarning, match="left out: .*00001-000002"):
        found = run[2]
    assert_same(found, merged(records[0][2], records[2][2]), rtol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run[2]
