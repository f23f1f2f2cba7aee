"""Series: what it reads straight from the columns is what the records say, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, Tensors, record_of, sample, tensors

from hookstats.runs.run import Run, open_run
from hookstats.runs.selections import choose
from hookstats.runs.series import SiteSeries
from hookstats.runs.writer import RunWriter
from hookstats.stats.bins import LogBins
from hookstats.stats.channel_stats import ChannelStats

EXACT = ("count", "nan", "posinf", "neginf", "zero", "min", "max", "amax")
CLOSE = ("mean", "var", "std", "l1_norm", "l2_norm", "rms")


def write(out: Path, steps: dict[int, Tensors], rank: int = 0, per_part: int = 2) -> Run:
    """A run of these steps, so many a part."""
    header = {"bins": BINS, "channel_bins": CHANNEL_BINS}
    writer = RunWriter(out, header, rank=rank, seconds_per_part=3600)
    for i, (step, data) in enumerate(steps.items(), 1):
        writer.write(record_of(data, step, rank))
        if i % per_part == 0:
            writer.flush()
    writer.close()
    return open_run(out)


def assert_statistics(actual: object, expected: list[ChannelStats]) -> None:
    """The same names have the same numbers; sums in another order may differ in the last bits."""
    for name in (*EXACT, *CLOSE):
        values = getattr(actual, name)
        stacked = np.stack([getattr(stats, name).numpy() for stats in expected])
        values = values.reshape(stacked.shape)
        if name in EXACT:
            np.testing.assert_array_equal(values, stacked, strict=True, err_msg=name)
        else:
            assert values.dtype == np.float64
            np.testing.assert_allclose(values, stacked, rtol=1e-12, atol=1e-13, err_msg=name)


def assert_series(site: SiteSeries, run: Run) -> None:
    """Equal to what the records of the run say of the site."""
    key = (site.name, site.kind)
    records = [r for step in run.steps if key in list(r := run[step])]
    expected = [record[key] for record in records]
    infos = [record.sites[list(record).index(key)] for record in records]
    assert site.steps.tolist() == [record.step for record in records]
    assert site.steps.dtype == site.observed.dtype == np.int64
    assert site.observed.tolist() == [r.observed[list(r).index(key)] for r in records]
    assert len(site) == len(records)
    assert (site.shape, site.dtype, site.channel_dim) == (
        infos[-1].shape,
        infos[-1].dtype,
        infos[-1].channel_dim,
    )
    assert_statistics(site, [stats.per_tensor() for stats in expected])
    assert_statistics(site.channels, expected)
    if run.bins is None:
        assert site.hist is None
    else:
        slots = [stats.tensor_hist.slot_counts[0].numpy() for stats in expected]
        np.testing.assert_array_equal(site.hist, np.stack(slots), strict=True)
    for i in (0, -1):
        assert torch.equal(site.stats(i).moments, expected[i].moments)
        assert torch.equal(site.stats(i).tallies, expected[i].tallies)
    assert (site.bins, site.channel_bins) == (run.bins, run.channel_bins)


@pytest.mark.parametrize(
    "per_part", [3, *(pytest.param(n, marks=pytest.mark.check) for n in (1, 100))]
)
def test_every_site_is_what_the_records_say(tmp_path: Path, per_part: int) -> None:
    run = write(tmp_path, {step: tensors(step) for step in (0, 2, 3, 7, 11)}, per_part=per_part)
    series = run.series()
    assert list(series) == list(tensors())
    assert series.steps.tolist() == run.steps
    for key, site in series.items():
        assert (site.name, site.kind) == key
        assert_series(site, run)
        assert_series(run[key][key], run)


@pytest.mark.parametrize("bins", [None, LogBins(0)])
def test_without_histograms(tmp_path: Path, bins: LogBins | None) -> None:
    writer = RunWriter(tmp_path, {"bins": bins, "channel_bins": None})
    for step in range(3):
        writer.write(sample(step, bins=bins, channel_bins=None))
    writer.close()
    run = open_run(tmp_path)
    for site in run.series().values():
        assert_series(site, run)


def test_sites_that_come_and_go(tmp_path: Path) -> None:
    always, never_first = tensors(1)["", "output"], tensors(2)["whole", "param_grad"]
    run = write(
        tmp_path,
        {
            step: {("a", "output"): always}
            | ({("late", "output"): never_first} if step in (3, 4, 8) else {})
            | ({("b", "output"): always} if step % 2 else {})
            for step in range(10)
        },
        per_part=3,
    )
    series = run["*", "output"]
    assert list(series) == [("a", "output"), ("b", "output"), ("late", "output")]
    assert series["late", "output"].steps.tolist() == [3, 4, 8]
    assert run["late", "*"].steps.tolist() == [3, 4, 8]
    for site in series.values():
        assert_series(site, run)


def test_ranks(tmp_path: Path) -> None:
    write(tmp_path, {step: tensors(step + 50) for step in range(3)})
    run = write(tmp_path, {step: tensors(step) for step in range(4)}, rank=1)
    for each in (run, run.of_rank(0), run.of_rank(1)):
        assert_series(each["whole", "*"]["whole", "param_grad"], each)
        assert_series(each["", "*"]["", "output"], each)


def test_steps_without_sites_are_no_steps_of_a_series(tmp_path: Path) -> None:
    run = write(tmp_path, {0: {}, 1: tensors(), 2: {}}, per_part=1)
    assert run.series().steps.tolist() == [1]


def test_channels_that_change_in_number_have_no_one_array(tmp_path: Path) -> None:
    shapes = {0: torch.randn(2, 3), 1: torch.randn(2, 5)}
    run = write(tmp_path, {step: {("a", "output"): (x, 1)} for step, x in shapes.items()})
    (site,) = run["a", "output"].values()
    assert [len(site.stats(i)) for i in range(2)] == [3, 5]
    with pytest.raises(ValueError, match=r"output of 'a': 3 to 5 channels, expected the same"):
        site.channels.mean  # noqa: B018
    assert site.count.tolist() == [6, 10]


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_without_any_site_are_not_taken_for_no_steps(tmp_path: Path, ranks: int) -> None:
    for rank in range(ranks):
        run = write(tmp_path, {0: {}, 1: {}}, rank=rank)
    assert run.steps == [0, 1]
    for select in (run.series, lambda: run["a", "output"]):
        with pytest.raises(KeyError, match="has no tensors in its steps yet"):
            select()


def test_a_series_stays_what_it_was(tmp_path: Path) -> None:
    header = {"bins": BINS, "channel_bins": CHANNEL_BINS}
    writer = RunWriter(tmp_path, header, seconds_per_part=0)
    for step in range(3):
        writer.write(sample(step))
    run = open_run(tmp_path)
    before = run["whole", "*"]["whole", "param_grad"]
    writer.write(sample(1))  # training went back
    writer.close()
    assert run.steps == [0, 1]
    assert before.steps.tolist() == [0, 1, 2]
    assert len(before.mean) == 3
    assert before.shape == sample(2).sites[5].shape
    assert run["whole", "*"].steps.tolist() == [0, 1]


def test_a_part_that_was_deleted_since_is_named(tmp_path: Path) -> None:
    run = write(tmp_path, {step: tensors(step) for step in range(2)}, per_part=1)
    series = run.series()
    first = min((tmp_path / "tensors").iterdir())
    first.unlink()
    with pytest.raises(FileNotFoundError, match=rf"deleted since .* again.*{first.name}"):
        series["whole", "param_grad"].mean  # noqa: B018
    assert run["whole", "*"]["whole", "param_grad"].steps.tolist() == [1]


KEYS = [
    *(("encoder.0.conv", kind) for kind in ("output", "grad_output")),
    *(("encoder.1.conv", kind) for kind in ("output[0]", "output[1]", "output[1].x")),
    *(("encoder.1.conv", kind) for kind in ("grad_output[1]", "grad_output[0]")),
    ("encoder.10", "output"),
    ("head[0]", "output.logits"),
    ("head", "param"),
]


@pytest.mark.parametrize(
    ("names", "kinds", "expected"),
    [
        ("encoder.0.conv", "output", KEYS[:1]),
        ("encoder.0.conv", "*", KEYS[:2]),
        ("encoder.1.conv", "output", KEYS[2:3]),
        ("encoder.1.conv", "output[0]", KEYS[2:3]),
        ("encoder.1.conv", "output[1]", KEYS[3:4]),
        ("encoder.1.conv", "output[*]", KEYS[2:4]),
        ("encoder.1.conv", "output[*", KEYS[2:5]),
        ("encoder.*", "output", [KEYS[0], KEYS[2], KEYS[7]]),
        ("encoder.*", "grad_output", [KEYS[1], KEYS[6]]),
        ("encoder.?.conv", "output*", [KEYS[0], *KEYS[2:5]]),
        ("encoder.[1-9]*", "output", [KEYS[2], KEYS[7]]),
        ("head[0]", "output", KEYS[8:9]),
        ("*", "param", KEYS[9:]),
        ("*", "*", KEYS),
    ],
)
def test_names_and_kinds_choose(names: str, kinds: str, expected: list[tuple[str, str]]) -> None:
    assert choose(KEYS, names, kinds) == expected


@pytest.mark.parametrize(
    ("names", "kinds", "hint"),
    [
        ("encoder.1.con", "output", "did you mean 'encoder.1.conv'"),
        ("encoder.0.conv", "ouput", "'encoder.0.conv' has the kinds 'output', 'grad_output'"),
        ("encoder.*", "param", "'encoder.*' has the kinds"),
        ("zzz*", "output", "5 names, such as 'encoder.0.conv', 'encoder.1.conv', 'encoder.10'"),
        ("Head", "param", "did you mean 'head'"),
    ],
)
def test_what_chooses_nothing_names_what_is_alike(names: str, kinds: str, hint: str) -> None:
    with pytest.raises(KeyError) as error:
        choose(KEYS, names, kinds)
    message = error.value.args[0]
    assert message.startswith(f"no site {(names, kinds)!r}: ")
    assert hint in message


def test_representations(tmp_path: Path) -> None:
    run = write(tmp_path, {3: tensors(), 4: tensors()})
    series = run["whole", "*"]
    assert repr(series) == "Series(1 site, 2 steps, 3 to 4: ('whole', 'param_grad'))"
    site = series["whole", "param_grad"]
    assert repr(site) == "SiteSeries('whole', 'param_grad', 2 steps, 3 to 4)"
    everything = run["*", "*"]
    assert repr(everything).startswith(f"Series({len(everything)} sites, 2 steps, 3 to 4: (")
    assert repr(everything).endswith("), ...)")
