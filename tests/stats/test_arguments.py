"""check_integer() and check_optional_integer(): what is an integer, and what the errors say."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from hookstats.stats.arguments import check_integer, check_optional_integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_python_and_numpy_are_integers(value: Any) -> None:
    found = check_integer("n", value, 1, 7)
    assert found == 3
    assert type(found) is int
    assert check_optional_integer("n", value, 1, 7) == 3
    assert check_optional_integer("n", None, 1, 7) is None


@pytest.mark.parametrize("value", [True, np.bool_(True), 2.0, "2", None, [2], 0, 8, 2**70])
def test_all_else_is_refused_by_name_and_value(value: Any) -> None:
    message = f"n = {value!r}: expected an integer in 1..7"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_integer("n", value, 1, 7)


@pytest.mark.parametrize(
    ("least", "most", "value", "expected"),
    [
        (1, None, 0, "an integer, 1 or more"),
        (None, 5, 6, "an integer, 5 or less"),
        (None, None, 1.5, "an integer"),
    ],
)
def test_open_ends(least: int | None, most: int | None, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^n = {value}: expected {expected}$"):
        check_integer("n", value, least, most)
    with pytest.raises(ValueError, match=f"^n = {value}: expected {expected}, or None$"):
        check_optional_integer("n", value, least, most)
