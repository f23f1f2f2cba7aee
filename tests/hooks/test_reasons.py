"""Reasons: the C++ hooks and the Python hooks give the same ones."""

from __future__ import annotations

import re

from support.paths import ROOT

from hookstats.records import reasons

NAMES = {name: value for name, value in vars(reasons).items() if name.isupper()}


def test_the_reasons_of_cpp_are_pythons() -> None:
    source = (ROOT / "csrc/hooks/site.h").read_text()
    given = re.findall(r'constexpr const char\* k\w+ = "(.*)";', source)
    assert given
    assert set(given) <= set(NAMES.values())


def test_no_two_reasons_read_alike() -> None:
    assert len(set(NAMES.values())) == len(NAMES)
    assert all(isinstance(text, str) and text for text in NAMES.values())
