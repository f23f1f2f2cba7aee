"""What ran, as data, data frames and tables."""

from __future__ import annotations

import pytest
import torch
from support.traced import NAMES, SCALE, Block, X

from hookstats.tensors.trace import trace


def test_as_data(block: Block) -> None:
    result = trace(block, X, scale=SCALE)
    rows = result.to_dicts()
    assert [row["name"] for row in rows] == NAMES
    assert rows[1]["outputs"][0]["shape"] == (5, 4)
    assert rows[1]["mean"] == result.calls[1].mean


@pytest.mark.check
def test_as_data_frames(block: Block) -> None:
    result = trace(block, X, scale=SCALE, backward=lambda output: output[0].sum())
    frame = result.to_pandas()
    assert list(frame.columns) == [
        "name", "type", "index", "depth", "input", "output", "dtype", "mean", "std", "nonfinite",
        "error",
    ]  # fmt: skip
    assert list(frame["name"]) == NAMES
    assert list(frame["index"]) == [0] * 6 + [1]
    assert frame["input"].tolist()[:2] == [((5, 3), (4,)), ((5, 3),)]
    assert frame["output"].tolist()[:2] == [((5, 4), (2,)), ((5, 4),)]
    assert set(frame["dtype"]) == {"float32"}
    for column in ("mean", "std"):
        expected = [getattr(call, column) for call in result.calls]
        assert frame[column].tolist() == pytest.approx(expected)
    assert frame["nonfinite"].tolist() == [0] * 7
    gradients = result.to_pandas(gradients=True)
    assert list(gradients.columns) == ["name", "shape", "dtype", "mean", "std", "nonfinite"]
    assert gradients.to_dict("records") == [vars(one) for one in result.gradients]


@pytest.mark.check
def test_a_call_that_raised_in_a_data_frame(block: Block) -> None:
    with pytest.raises(RuntimeError) as caught, trace(block) as result:
        block(torch.ones(2, 9), scale=SCALE)
    frame = result.to_pandas()
    assert frame["output"].tolist() == [None, None]
    assert frame["error"][1] == f"RuntimeError: {caught.value}"
    assert list(trace(block).to_pandas().columns) == list(frame.columns)  # without rows
    assert "name" in trace(block).to_pandas(gradients=True)


def test_the_table_aligns_indents_and_counts(block: Block) -> None:
    result = trace(block, X, scale=SCALE, backward=lambda output: output[0].sum())
    calls, gradients = (part.splitlines() for part in str(result).split("\n\n"))
    assert calls[0].split() == [
        "call", "type", "input", "output", "dtype", "mean", "std", "non-finite",
    ]  # fmt: skip
    assert calls[1].startswith("(root) ")
    assert "5x3, 4 " in calls[1]
    assert "5x4, 2 int64 float32" in calls[1]
    assert [line.split()[0] for line in calls[2:]] == [
        "first", "act@0", "second", "second.0", "second.1", "act@1",
    ]  # fmt: skip
    assert calls[5].startswith("    second.0")
    assert len({len(line) for line in calls}) == 1
    assert gradients[0].split() == ["gradient", "shape", "dtype", "mean", "std", "non-finite"]
    assert len(gradients) == 5


def test_nothing_ran(block: Block) -> None:
    result = trace(block)
    assert "nothing ran" in str(result)
    assert (repr(result), result.stopped) == ("Trace(calls=0, gradients=0)", None)


def test_nothing_that_was_selected_ran(block: Block) -> None:
    with trace(include="conv") as result:
        block(X, scale=SCALE)
    assert str(result).startswith("nothing ran that include and exclude leave: ")


def test_gradients_alone(block: Block) -> None:
    result = trace(block, X, scale=SCALE, include="first.bias", backward=lambda y: y[0].sum())
    assert (result.calls, [one.name for one in result.gradients]) == ([], ["first.bias"])
    printed = str(result)
    assert "first.bias" in printed
    assert "nothing ran" not in printed
