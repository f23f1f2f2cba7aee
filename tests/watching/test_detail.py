"""watch(detail="tensor"): whole tensors in each step, channels in some and around incidents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.modules import network
from torch.optim import SGD

from hookstats import LinearBins, open_run, watch
from hookstats.records.difference import compare
from hookstats.records.ranks import Merger
from hookstats.records.record import StepRecord
from hookstats.records.summary import summarise
from hookstats.records.tensors import of_tensors
from hookstats.rules import NonFinite, replay
from hookstats.runs.run import Run
from hookstats.show.overview import overview
from hookstats.show.sampled import choose_steps, sampled

STEPS = 12


def train(
    out: Path, bad: int | None = None, steps: int = STEPS, **settings: Any
) -> list[StepRecord]:
    """Train for some steps, of which one has a NaN; the records that a sink got."""
    torch.manual_seed(0)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.0)
    records: list[StepRecord] = []
    settings = {"detail": "tensor", "channels_every": 5, **settings}
    rules = [NonFinite(action=lambda alert: None)]
    with watch(model, optimizer, out=out, sinks=[records.append], rules=rules, **settings) as w:
        for step in range(steps):
            x = torch.randn(4, 3)
            x[0, 0] = torch.nan if step == bad else 0.0
            model(x).sum().backward()
            w.log(loss=1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert w.coverage().failures == {}
    return records


def with_channels(run: Run) -> list[int]:
    """The steps that have their channels."""
    return [step for step in run.steps if not any(site.merged for site in run[step].sites)]


def test_which_steps_have_their_channels(tmp_path: Path) -> None:
    train(tmp_path / "sound")
    assert with_channels(open_run(tmp_path / "sound")) == [0, 5, 10]
    train(tmp_path / "bad", bad=7)
    assert with_channels(open_run(tmp_path / "bad")) == [0, 5, *range(7, STEPS)]
    train(tmp_path / "every", every=2, channels_every=3)
    assert with_channels(open_run(tmp_path / "every")) == [0, 6]


def test_whole_tensors_are_those_of_the_channels(tmp_path: Path) -> None:
    records = train(tmp_path, bad=3, channel_bins=LinearBins(4, -1, 1))
    run = open_run(tmp_path)
    assert run.steps == list(range(STEPS))
    for record in records:
        found = run[record.step]
        assert found.keys() == record.keys()
        whole = found.whole
        torch.testing.assert_close(whole.moments, record.whole.moments, rtol=1e-14, atol=0)
        assert torch.equal(whole.tallies, record.whole.tallies)
        assert np.array_equal(found.hist.counts, record.hist.counts)
        assert found.channel_hist.counts.sum() == record.channel_hist.counts.sum()
        if record.step in with_channels(run):
            assert found.sites == record.sites
            assert np.array_equal(found.tallies, record.tallies)
        else:
            assert [s.merged for s in found.sites] == [
                s.channels if s.channels > 1 else 0 for s in record.sites
            ]
            assert not compare(found, record, rtol=1e-12)


def test_tables_and_series_have_all_steps(tmp_path: Path) -> None:
    records = train(tmp_path)
    run = open_run(tmp_path)
    table = run.table()
    assert len(table) == sum(map(len, records))
    widths = {(s.name, s.kind): s.channels for s in records[0].sites}
    for row in table.select(["site", "kind", "channels", "count"]).to_pylist():
        assert row["channels"] == widths[row["site"], row["kind"]]
        assert len(row["count"]) in (1, row["channels"])
    site = run.series("*", "output")["0", "output"]
    assert site.steps.tolist() == list(range(STEPS))
    assert len(site.rms) == STEPS
    assert site.channels.steps.tolist() == [0, 5, 10]
    expected = [records[step][site.name, site.kind].rms.numpy() for step in (0, 5, 10)]
    np.testing.assert_allclose(site.channels.rms, expected, rtol=1e-12)


def test_what_people_look_at_says_what_is_not_known(tmp_path: Path) -> None:
    train(tmp_path)
    run = open_run(tmp_path)
    for step, expected in ((4, "-"), (5, "0/2")):
        (said,) = (s.dead_of for s in summarise(run[step]) if (s.name, s.kind) == ("2", "output"))
        assert said == expected
    view = overview(run)
    some = sampled(run, view)
    assert {0, 5, 10} <= set(some.steps)
    for s, (site, channels) in enumerate(zip(view.sites, some.channels, strict=True)):
        assert channels is not None
        assert not site.merged
        if site.channels > 1:
            assert [some.steps[k] for k in np.flatnonzero(channels.known)] == [0, 5, 10]
            assert np.flatnonzero(view.dead[:, s] >= 0).tolist() == [0, 5, 10]
    assert choose_steps(range(1000), 10**6, detailed=range(0, 1000, 100))[:4] == [0, 13, 25, 38]
    assert set(range(0, 1000, 100)) <= set(
        choose_steps(range(1000), 10**6, (), range(0, 1000, 100))
    )


def test_rules_that_replay_know_what_they_can(tmp_path: Path) -> None:
    train(tmp_path, bad=7)
    run = open_run(tmp_path)
    assert [alert.step for alert in replay(run, "non-finite")] == [7]


def test_a_run_goes_on_with_the_same_detail_alone(tmp_path: Path) -> None:
    train(tmp_path, steps=3)
    with pytest.raises(ValueError, match="detail = 'tensor': expected 'channel'"):
        train(tmp_path, append=True, detail="channel")
    train(tmp_path, append=True, channels_every=2, steps=3)
    assert with_channels(open_run(tmp_path)) == [0, 4]


def test_of_tensors_twice_is_of_tensors() -> None:
    model = network()
    with watch(model, rules=False) as w:
        model(torch.randn(4, 3))
        w.step()
    once = of_tensors(w.latest)
    assert of_tensors(once).sites == once.sites
    assert once.whole.count.tolist() == w.latest.whole.count.tolist()


def test_ranks_of_which_one_has_its_channels_merge_as_tensors(tmp_path: Path) -> None:
    first, second = train(tmp_path, steps=2)
    second = replace(second, step=first.step, rank=1)
    merged = Merger()([of_tensors(first), second])
    expected = Merger()([first, second])
    assert {site.merged for site in merged.sites} == {2, 3, 4}
    assert not compare(merged, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"detail": "layer"}, 'detail = \'layer\': expected "channel" or "tensor"'),
        ({"detail": "tensor", "channels_every": 0}, "channels_every = 0: expected"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        watch(network(), **settings)
