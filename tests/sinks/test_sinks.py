"""Sinks, with the real libraries: what they wrote is read back; which ranks write, and where."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.paths import ROOT, TESTS
from support.recorded import train
from support.samples import record_of, sample, tensors

from hookstats import sinks
from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.record import StepRecord
from hookstats.sinks.charts import SCALARS, STATISTICS, charts
from hookstats.stats.bins import LogBins
from hookstats.stats.channel_stats import ChannelStats


def expected_scalars(record: StepRecord) -> dict[str, float]:
    """Statistic by statistic, site by site, what charts are to say."""
    out = {}
    for name, kind in record:
        whole = record[name, kind].per_tensor()
        for statistic in SCALARS:
            value = getattr(whole, statistic).item()
            if math.isfinite(value):
                out[f"{kind}.{statistic}/{name or '(root)'}"] = value
    return out


def whole_of(record: StepRecord, tag: str) -> ChannelStats:
    kind, _, name = tag.partition("/")
    return record["" if name == "(root)" else name, kind].per_tensor()


def test_charts_of_odd_sites() -> None:
    record = sample(bins=LogBins())
    numbers, histograms = charts(record, SCALARS, 64)
    assert numbers == pytest.approx(expected_scalars(record), rel=1e-12)
    assert numbers["output.nan/(root)"] == 1
    # No values: no mean, but a count of the NaNs.
    assert "grad_output.logits.mean/encoder.0.réseau" not in numbers
    assert numbers["grad_output.logits.nan/encoder.0.réseau"] == 6
    assert list(histograms) == [
        "output/(root)",
        "output[1]/encoder.0.réseau",
        "param_grad/whole",
        "output/scalar",
    ]
    for tag, chart in histograms.items():
        whole = whole_of(record, tag)
        assert chart.counts.sum() == chart.num == whole.count.item()
        assert len(chart.counts) <= 64
        assert (chart.min, chart.max) == (whole.min.item(), whole.max.item())
        assert chart.sum == pytest.approx((whole.mean * whole.count).item())
        assert chart.sum_squares == pytest.approx(whole.l2_norm.square().item())
    assert charts(record, (), 0) == ({}, {})
    assert charts(sample(bins=None), ("min",), 64)[1] == {}
    assert charts(record_of({}), SCALARS, 64) == ({}, {})


@pytest.mark.check
@pytest.mark.parametrize("own_writer", [False, True])
def test_tensorboard_reads_it_back(tmp_path: Path, own_writer: bool) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path)) if own_writer else None
    sink = sinks.TensorBoard(writer or tmp_path, SCALARS, histograms=True, every=2)
    records = train(sink)
    if writer:
        writer.add_scalar("mine", 1.0, 7)  # it is still open
        writer.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    expected = [expected_scalars(record) for record in records[::2]]
    ours = (
        *("lr/0", "update_ratio/0", "gradient_cosine/0"),
        *("grad_norm", "steps_per_second", "watch_seconds"),
    )
    logged = {f"scalar/{name}" for name in ours}
    assert set(events.Tags()["scalars"]) == set(expected[0]) | logged | (
        {"mine"} if writer else set()
    )
    for tag in expected[0]:
        got = events.Scalars(tag)
        assert [event.step for event in got] == [0, 2]
        assert [event.value for event in got] == pytest.approx([e[tag] for e in expected], rel=1e-6)
    expected = {f"{kind}/{name or '(root)'}" for name, kind in records[0]}
    assert set(events.Tags()["histograms"]) == expected
    for tag in events.Tags()["histograms"]:
        for event in events.Histograms(tag):
            whole = whole_of(records[event.step], tag)
            value = event.histogram_value
            assert value.num == sum(value.bucket) == whole.count.item()
            assert (value.min, value.max) == (whole.min.item(), whole.max.item())
            limits = np.array(value.bucket_limit)
            assert (np.diff(limits) > 0).all()
            assert limits[0] <= value.min <= value.max <= limits[-1]
            assert len(limits) <= 261
            assert value.sum_squares == pytest.approx(whole.l2_norm.square().item())


@pytest.mark.check  # needs tensorboard
def test_tensorboard_gets_a_summary_by_default(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = train(sinks.TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = {tag for tag in events.Tags()["scalars"] if not tag.startswith("scalar/")}
    assert tags <= {f"{kind}.rms/{name or '(root)'}" for name, kind in records[0]}
    assert tags
    assert not events.Tags()["histograms"]


def wandb_records(path: Path) -> Iterator[Any]:
    """What a .wandb file holds: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, block, header = path.read_bytes(), 32768, struct.Struct("<IHB")
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at < len(data):
        if block - at % block < header.size:  # too short for a header: padding
            at += block - at % block
            continue
        _, length, part = header.unpack_from(data, at)
        record += data[at + header.size : at + header.size + length]
        at += header.size + length
        if part in (1, 4):  # whole, or the last of several
            yield Record.FromString(record)
            record = b""


class WandBRun(NamedTuple):
    """What a run's file has: the rows of its history; by metric (or glob) its x axis; alerts."""

    rows: list[dict[str, Any]]
    axes: dict[str, str]
    alerts: list[Any]


WANDB_SCRIPT = """
import sys
sys.path[:0] = sys.argv[2:]
import torch, wandb
from support.recorded import train
from hookstats import actions, rules, sinks
from hookstats.records.alerts import Incident

def init(name):
    settings = dict(silent=True, console="off", disable_git=True, x_disable_meta=True,
                    x_disable_stats=True, x_disable_machine_info=True)
    return dict(dir=f"{sys.argv[1]}/{name}", mode="offline", settings=settings)

torch.manual_seed(0)
train(sinks.WandB(**init("own")))

torch.manual_seed(0)
run = wandb.init(**init("added"))
actions.wandb(Incident(rules.Alert(1, None, "a", "output", None, "loss", 1.0, "is high", "error")))
train(sinks.WandB(scalars=("rms",), histograms=False, every=2, commit=False))
run.log({"loss": 1.0}, step=40)
run.log({"loss": 2.0}, step=41)
run.finish()
"""


@pytest.fixture(scope="module")
def wandb_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WandBRun]:
    """Of a process of its own, as wandb starts a service and leaves threads behind."""
    directory = tmp_path_factory.mktemp("wandb")
    runs = {name: WandBRun([], {}, []) for name in ("own", "added")}
    for name in runs:
        (directory / name).mkdir()
    paths = (directory, TESTS, ROOT)
    subprocess.run([sys.executable, "-c", WANDB_SCRIPT, *map(str, paths)], check=True)
    for name, run in runs.items():
        (path,) = (directory / name).glob("wandb/offline-run-*/*.wandb")
        for entry in wandb_records(path):
            if entry.WhichOneof("record_type") == "history":
                run.rows.append(row := {})
                for item in entry.history.item:
                    *outer, key = item.nested_key
                    inner = row.setdefault(outer[0], {}) if outer else row
                    inner[key] = json.loads(item.value_json)
            elif entry.WhichOneof("record_type") == "metric":
                metric = entry.metric
                run.axes[metric.name or metric.glob_name] = metric.step_metric
            elif entry.WhichOneof("record_type") == "alert":
                run.alerts.append(entry.alert)
    return runs


@pytest.mark.check
def test_wandb_reads_it_back(wandb_runs: dict[str, WandBRun]) -> None:
    records = train(lambda record: None)
    rows, axes, _ = wandb_runs["own"]
    logged = [row for row in rows if "scalar/step" in row]
    assert [row["scalar/step"] for row in logged] == [0, 1, 2, 3]
    assert [row["scalar/lr/0"] for row in logged] == [0.1] * 4
    assert axes["scalar/*"] == "scalar/step"
    rows = [row for row in rows if "hookstats/step" in row]
    assert [row["hookstats/step"] for row in rows] == [0, 1, 2, 3]
    for row, record in zip(rows, records, strict=True):
        expected = expected_scalars(record)
        assert {tag: row[tag] for tag in expected} == pytest.approx(expected)
        for name, kind in record:
            hist = row[f"{kind}/{name or '(root)'}"]
            assert hist["_type"] == "histogram"
            assert len(hist["values"]) + 1 == len(hist["bins"]) <= 513
            assert sum(hist["values"]) == record[name, kind].per_tensor().count.item()
            assert axes[f"{kind}/*"] == axes[f"{kind}.rms/*"] == "hookstats/step"


@pytest.mark.check
def test_wandb_adds_to_what_the_training_logs(wandb_runs: dict[str, WandBRun]) -> None:
    records = train(lambda record: None)
    rows, _, alerts = wandb_runs["added"]
    ours = [{t: v for t, v in row.items() if "rms" in t or "hookstats" in t} for row in rows]
    rms = {t: v for t, v in expected_scalars(records[2]).items() if ".rms/" in t}
    # What was not committed was added to: the last of it is there once.
    assert [row["loss"] for row in rows if "loss" in row] == [1.0, 2.0]
    assert [row for row in ours if row] == [pytest.approx({"hookstats/step": 2, **rms})]
    ((title, text, level),) = [(one.title, one.text, one.level) for one in alerts]
    assert (title, level) == ("hookstats: loss", "ERROR")
    assert text.startswith("error: is high")


def test_jsonl_reads_it_back(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    sink = sinks.JSONL(path)
    records = [*train(sink, steps=2), sample(step=7, rank=1)]
    sink = sinks.JSONL(path)  # appends
    sink(records[-1])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    sink.close()
    sink.close()
    logged = [line for line in lines if "scalars" in line]
    assert [line["step"] for line in logged] == [0, 1]
    for line, record in zip(logged, records, strict=False):
        assert line["rank"] == record.rank
        # What a step does to the weights comes after its record.
        assert line["scalars"].items() >= record.scalars.items()
        assert "update_ratio/0" in line["scalars"]
    lines = [line for line in lines if "scalars" not in line]
    assert len(lines) == sum(map(len, records))
    keys = [(record, *key) for record in records for key in record]
    for line, (record, name, kind) in zip(lines, keys, strict=True):
        whole = record[name, kind].per_tensor()
        assert (line["step"], line["rank"]) == (record.step, record.rank)
        assert (line["site"], line["kind"], line["observed"]) == (name, kind, 1)
        assert set(line) >= set(STATISTICS)
        for statistic in STATISTICS:
            value = getattr(whole, statistic).item()
            if math.isfinite(value):
                assert line[statistic] == pytest.approx(value, rel=1e-12)
            else:
                assert line[statistic] is None
    scalar = next(line for line in lines if line["site"] == "scalar")
    assert (scalar["shape"], scalar["dtype"], scalar["mean"]) == ([], "float32", 0.25)


def test_scalars_go_to_any_function() -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    records = train(sinks.Scalars(lambda values, step: seen.append((step, values))))
    assert [step for step, _ in seen] == [record.step for record in records]
    for (_, values), record in zip(seen, records, strict=True):
        # What a step does to the weights comes after its record.
        assert values.items() >= record.scalars.items()
        assert "update_ratio/0" in values
    train(sinks.Scalars(lambda values, step: seen.append((step, values)), rank=1))
    assert len(seen) == len(records)


def test_bad_arguments(tmp_path: Path) -> None:
    for make in (
        lambda **kw: sinks.TensorBoard(tmp_path, **kw),
        lambda **kw: sinks.WandB(object(), **kw),
    ):
        for scalars in ("rms", ("rms", "median")):
            with pytest.raises(ValueError, match=r"scalars = .*: expected some of count, nan"):
                make(scalars=scalars)
        for every in (0, True, 1.5):
            with pytest.raises(ValueError, match=f"every = {every}: expected an integer"):
                make(every=every)
    with pytest.raises(FileNotFoundError):
        sinks.JSONL(tmp_path / "nowhere" / "stats.jsonl")


@pytest.mark.parametrize(("missing", "sink"), [("tensorboard", "TensorBoard"), ("wandb", "WandB")])
def test_what_is_not_installed_is_asked_for(
    missing: str, sink: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [*sys.modules]:
        if name.split(".")[0] == missing or name.startswith("torch.utils.tensorboard"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"sinks.{sink} needs {missing} .*pip install {missing}"):
        getattr(sinks, sink)(tmp_path)


@pytest.mark.check
def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = "import hookstats.sinks, hookstats.rules, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "hookstats.sinks.wandb" in loaded
    assert {"tensorboard", "wandb", "pyarrow", "rich", "torch.utils.tensorboard"}.isdisjoint(loaded)


def test_charts_take_what_a_channel_stats_has() -> None:
    stats = channel_stats(torch.randn(3))
    assert all(hasattr(stats, name) for name in STATISTICS)
    assert set(SCALARS) < set(STATISTICS)


STEPS = 3


def record(step: int, rank: int | None) -> StepRecord:
    return replace(record_of(tensors(step), step), rank=rank)


def write(monkeypatch: pytest.MonkeyPatch, make: Any, merged: bool = False) -> None:
    """As two ranks do, one after the other."""
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        sink = make()
        for step in range(STEPS):
            sink(record(step, None if merged else rank))
            sink.write_scalars(step, rank, {"loss": 0.5})
        sink.close()


def lines(path: Path) -> list[tuple[int, int | None]]:
    """Step and rank of each record; of numbers that were logged, 100 and the rank."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(
        {(100 if "scalars" in line else line["step"], line["rank"]) for line in found}, key=str
    )


def of_rank(rank: int | None, scalars: int) -> list[tuple[int, int | None]]:
    return sorted([(100, scalars), *((step, rank) for step in range(STEPS))], key=str)


def test_each_rank_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(monkeypatch, lambda: sinks.JSONL(tmp_path / "stats.v2.jsonl"))
    names = ["stats.v2.jsonl", "stats.v2.rank1.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for rank, name in enumerate(names):
        assert lines(tmp_path / name) == of_rank(rank, rank)


@pytest.mark.parametrize("ranks", [0, 1])
def test_one_rank_alone_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    write(monkeypatch, lambda: sinks.JSONL(tmp_path / "stats.jsonl", ranks=ranks))
    (path,) = tmp_path.iterdir()
    assert (path.name, lines(path)) == ("stats.jsonl", of_rank(ranks, ranks))


def test_records_of_the_whole_model_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = lambda: sinks.JSONL(tmp_path / "stats.jsonl", ranks="merged")  # noqa: E731
    write(monkeypatch, make, merged=True)
    assert lines(tmp_path / "stats.jsonl") == of_rank(None, 0)
    write(monkeypatch, make)  # where the merging ended, each rank has its own
    assert lines(tmp_path / "stats.jsonl") == of_rank(None, 0)


@pytest.mark.check
@pytest.mark.parametrize("ranks", ["all", "merged", 1])
def test_tensorboard_has_curves_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Any
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(monkeypatch, lambda: sinks.TensorBoard(tmp_path, ranks=ranks), merged=ranks == "merged")
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("events.*")}
    assert found == {".", "rank1"} if ranks == "all" else {"."}
    for folder in found:
        events = EventAccumulator(str(tmp_path / folder), size_guidance={"scalars": 0})
        events.Reload()
        for tag in ("output.rms/scalar", "scalar/loss"):
            assert [event.step for event in events.Scalars(tag)] == list(range(STEPS))


@pytest.mark.check
def test_who_does_not_write_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    import wandb

    started: list[dict[str, Any]] = []
    monkeypatch.setattr(wandb, "init", lambda **kw: started.append(kw))
    monkeypatch.setenv("RANK", "1")
    sink = sinks.WandB(ranks=0)
    sink(record(0, 1))
    sink.write_scalars(0, 1, {"loss": 1.0})
    sink.close()
    assert started == []
    assert repr(sink) == "WandB(None)"


@pytest.mark.parametrize("wrong", [-1, True, "none", 0.5, None])
def test_a_wrong_argument_is_refused(tmp_path: Path, wrong: Any) -> None:
    for make in (
        lambda **kw: sinks.JSONL(tmp_path / "a", **kw),
        lambda **kw: sinks.TensorBoard(tmp_path, **kw),
        lambda **kw: sinks.WandB(object(), **kw),
    ):
        with pytest.raises(ValueError, match=f"ranks = {wrong!r}: expected 'all', 'merged'"):
            make(ranks=wrong)
    assert list(tmp_path.iterdir()) == []
