"""StepRecord, SparseCounts and keys: look-up, errors, and agreement with channel_stats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.samples import BINS, CHANNEL_BINS, record_of, sample, slots, sparse_of, tensors

from hookstats.insight.channels import dead
from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.keys import Kind, finder, in_phase, label, leaf_path, parse_kind, plain_kind

DENSE = arrays.arrays(
    np.int64,
    st.tuples(st.integers(0, 6), st.integers(0, 9)),
    elements=st.sampled_from([0, 0, 0, 1, 2**40]),
)


@given(DENSE, st.data())
def test_sparse_counts_hold_what_the_dense_held(dense: np.ndarray, data: st.DataObject) -> None:
    sparse = sparse_of(dense)
    rows, width = dense.shape
    assert sparse.rows == rows
    assert (sparse.offsets.dtype, sparse.slots.dtype, sparse.counts.dtype) == (
        np.int64,
        np.int32,
        np.int64,
    )
    assert (sparse.counts > 0).all()
    span = data.draw(st.slices(rows).filter(lambda s: s.step in (None, 1)))
    np.testing.assert_array_equal(sparse[span].dense(width), dense[span], strict=True)
    for part in (sparse[span], sparse[span][:]):
        np.testing.assert_array_equal(part.dense(width), dense[span], strict=True)
        assert part.offsets[0] == 0
    for row in range(rows):
        np.testing.assert_array_equal(sparse.dense_row(row, width), dense[row], strict=True)


def test_a_plain_kind_names_the_first_tensor_of_several() -> None:
    kinds = ["output.logits", "output.aux", "grad_output.aux", "grad_output.logits", "input"]
    x = {("a", kind): (torch.full((2, 3), float(i)), 1) for i, kind in enumerate(kinds)}
    record = record_of(x)
    assert record["a", "output"].mean.tolist() == record["a", "output.logits"].mean.tolist()
    # Backward brings the last output's gradient first: that does not make it the first.
    assert record["a", "grad_output"].max[0] == 3
    assert record["a", "input[0]"].max[0] == 4
    assert ("a", "grad_output") in record
    assert ("a", "grad_input") not in record
    assert ("b", "output") not in record


def test_a_record_is_a_mapping_in_order_of_observation() -> None:
    record = sample()
    keys = list(tensors())
    assert list(record.keys()) == list(record) == keys
    assert len(record) == len(keys)
    assert ("", "output") in record
    assert ("", "input") not in record
    assert "" not in record
    assert isinstance(record, Mapping)
    for (key, stats), value in zip(record.items(), record.values(), strict=True):
        assert torch.equal(stats.moments, record[key].moments)
        assert torch.equal(stats.moments, value.moments)
    assert record.get(("", "input")) is None
    assert record.get("anything", 7) == 7
    found = record.get(("", "output"))
    assert found is not None
    assert torch.equal(found.tallies, record["", "output"].tallies)
    assert record._ipython_key_completions_() == keys
    # Compared and hashed by identity, as statistics have no one truth.
    assert record == record
    assert record != sample()
    assert {record: 1}[record] == 1


def test_a_record_says_in_short_what_it_holds() -> None:
    x = torch.zeros(2, 2), 1
    keys = [("", "output"), ("a", "output"), ("b", "output[1]"), ("c", "grad_output")]
    assert repr(record_of(dict.fromkeys(keys, x), step=12)) == (
        "StepRecord(step=12, rank=0, 4 sites: (root) output, ..., c grad_output)"
    )
    assert repr(record_of(dict.fromkeys(keys[:2], x), step=3)) == (
        "StepRecord(step=3, rank=0, 2 sites: (root) output, a output)"
    )
    assert repr(record_of({})) == "StepRecord(step=0, rank=0, 0 sites)"


def test_whole_tensors_are_merged_once_and_kept() -> None:
    record = sample()
    assert record.whole is record.whole
    assert len(record.whole) == len(record)
    for i, stats in enumerate(record.values()):
        assert torch.equal(record.whole.tallies[i], stats.per_tensor().tallies[0])
        torch.testing.assert_close(record.whole.moments[i], stats.per_tensor().moments[0])


@pytest.mark.parametrize("bins", [None, BINS])
@pytest.mark.parametrize("channel_bins", [None, CHANNEL_BINS])
def test_each_site_has_the_statistics_of_its_tensor(bins, channel_bins) -> None:
    record = sample(bins=bins, channel_bins=channel_bins)
    for key, (x, dim) in tensors().items():
        actual, expected = record[key], channel_stats(x, dim, bins=channel_bins)
        assert torch.equal(actual.moments, expected.moments)
        assert torch.equal(actual.tallies, expected.tallies)
        if channel_bins is None:
            assert actual.hist is None
        else:
            np.testing.assert_array_equal(slots(actual.hist), slots(expected.hist))
        if bins is None:
            assert actual.tensor_hist is None
        else:
            whole = channel_stats(x, None, bins=bins).hist
            np.testing.assert_array_equal(slots(actual.tensor_hist), slots(whole))


def test_statistics_are_copies() -> None:
    record = sample()
    record["", "output"].moments.fill_(7.0)
    assert torch.equal(record["", "output"].moments, sample()["", "output"].moments)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (("encoder.layer1.con", "output"), "did you mean 'encoder.layer1.conv'"),
        (("encoder.layer1.conv", "ouput"), "'grad_output'; did you mean 'output'?"),
        (("encoder.layer1.conv", "zzz"), "has the kinds 'output', 'grad_output'"),
        (("zzz", "output"), "2 names, such as 'encoder.layer1.conv', 'head'"),
        ("head", "expected (name, kind), two strings"),
        (("head",), "expected (name, kind), two strings"),
    ],
)
def test_an_unknown_key_names_those_that_are_alike(key, hint: str) -> None:
    x = (torch.zeros(2, 2), 1)
    keys = [("encoder.layer1.conv", "output"), ("encoder.layer1.conv", "grad_output")]
    record = record_of({**dict.fromkeys(keys, x), ("head", "output"): x}, step=12)
    with pytest.raises(KeyError) as error:
        record[key]
    message = error.value.args[0]
    assert message.startswith(f"no site {key!r} in step 12")
    assert hint in message


def test_a_record_without_sites() -> None:
    record = record_of({})
    assert list(record) == []
    with pytest.raises(KeyError, match="no site"):
        record["a", "output"]


def test_dead_channels_that_were_not_kept_are_no_zero_of_one() -> None:
    x = torch.ones(4, 3)
    x[:, 1] = 0.0
    sites = {("a", "output"): (x, 1), ("whole", "output"): (torch.zeros(4), None)}
    record = record_of(sites, 20)
    assert record["a", "output"].dead.tolist() == [False, True, False]
    alone = record.without_channels()
    with pytest.raises(ValueError, match=r"of step 20 were not kept: 1 of 3 were dead; expected"):
        dead(alone["a", "output"])
    with pytest.raises(ValueError, match="not kept"):
        _ = alone["a", "output"].merge(alone["a", "output"]).dead
    assert alone["whole", "output"].dead.tolist() == [True]
    unknown = replace(alone, known_dead=None)
    with pytest.raises(ValueError, match=r"of step 20 were not kept; expected"):
        _ = unknown["a", "output"].dead


@pytest.mark.parametrize(
    ("kind", "plain", "path"),
    [
        ("output", "output", None),
        ("output[0]", "output", ""),
        ("output[0][0]", "output", ""),
        ("output[1]", "output", "[1]"),
        ("output[10]", "output", "[10]"),
        ("grad_output.logits", "grad_output", ".logits"),
        ("input['a.b'][2].x", "input", "['a.b'][2].x"),
        ("param_grad", "param_grad", None),
    ],
)
def test_a_kind_has_a_plain_kind_and_a_path(kind: str, plain: str, path: str | None) -> None:
    assert parse_kind(kind) == Kind(plain, path)
    assert plain_kind(kind) == plain


def test_a_kind_knows_its_gradient_and_its_values() -> None:
    for values, gradient in (
        ("output", "grad_output"),
        ("output[1]", "grad_output[1]"),
        ("input.mask", "grad_input.mask"),
        ("param", "param_grad"),
        ("fake:output[1]", "fake:grad_output[1]"),
    ):
        assert parse_kind(values).gradient == parse_kind(gradient).gradient == gradient
        assert parse_kind(values).values == parse_kind(gradient).values == values
        assert parse_kind(gradient).is_gradient
        assert not parse_kind(values).is_gradient


def test_a_phase_stands_before_the_kind() -> None:
    assert parse_kind("fake:output[0]") == Kind("output", "", "fake")
    assert parse_kind("b-2:input['a:b']") == Kind("input", "['a:b']", "b-2")
    assert parse_kind("input['a:b']") == Kind("input", "['a:b']")
    assert parse_kind("fake:output[1]").base == "fake:output"
    assert plain_kind("fake:grad_output.x") == "grad_output"
    assert in_phase("", "output") == in_phase(None, "output") == "output"


def test_a_plain_kind_means_a_tensor_of_training() -> None:
    keys = [("a", "fake:output[1]"), ("a", "output"), ("b", "fake:output")]
    find = finder(keys)
    assert find("a", "output") == ("a", "output")
    assert find("a", "fake:output") == ("a", "fake:output[1]")
    assert find("b", "output") is None


def test_only_the_path_of_a_first_leaf_goes_without_saying() -> None:
    assert [leaf_path(path) for path in ("", "[0]", "[0][0]")] == [""] * 3
    for path in ("[1]", "[0][1]", "[00]", "[]0", ".x[0]", "[1][0]"):
        assert leaf_path(path) == path


def test_a_plain_kind_means_the_first_tensor_by_any_spelling() -> None:
    keys = [("a", "output[1]"), ("a", "output[2]"), ("b", "output"), ("b", "output[1]")]
    find = finder(keys)
    assert find("a", "output") == find("a", "output[0]") == ("a", "output[1]")
    assert find("b", "output") == find("b", "output[0]") == find("b", "output[0][0]")
    assert find("b", "output[1]") == ("b", "output[1]")
    assert find("b", "output[2]") is None
    assert find("c", "output") is None


def test_the_first_gradient_is_that_of_the_first_value() -> None:
    keys = [("a", "output"), ("a", "output[1]"), ("a", "grad_output[1]"), ("a", "grad_output")]
    assert finder(keys)("a", "grad_output") == ("a", "grad_output")
    assert finder(keys[:3])("a", "grad_output") == ("a", "grad_output[1]")


def test_the_root_module_has_a_label() -> None:
    assert (label(""), label("0.conv")) == ("(root)", "0.conv")
    assert (label("[64ch]"), label("0[64ch]")) == ("(root)[64ch]", "0[64ch]")
