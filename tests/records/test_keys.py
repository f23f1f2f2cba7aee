"""Keys: the grammar of kinds, and what a name and a kind mean."""

from __future__ import annotations

import pytest

from hookstats.records.keys import Kind, finder, in_phase, label, leaf_path, parse_kind, plain_kind


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
