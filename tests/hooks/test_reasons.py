"""Reasons: the C++ hooks and the Python hooks give the same ones."""

from __future__ import annotations

import pytest

from hookstats.kernels import native
from hookstats.records import reasons

NAMES = {name: value for name, value in vars(reasons).items() if name.isupper()}

needs_native = pytest.mark.skipif(native.hooks is None, reason=f"no C++ hooks: {native.why_not}")


@needs_native
def test_the_reasons_of_cpp_are_pythons() -> None:
    assert native.hooks is not None
    given = native.hooks.REASONS
    assert given
    assert given == {name: NAMES.get(name) for name in given}


def test_no_two_reasons_read_alike() -> None:
    assert len(set(NAMES.values())) == len(NAMES)
    assert all(isinstance(text, str) and text for text in NAMES.values())
