"""A browser, and the page of a run that the test's module has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import chromium

import hookstats as hs
from hookstats.show import page as report


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def path(run: hs.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(run, tmp_path_factory.mktemp("report") / "report.html")
