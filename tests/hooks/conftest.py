"""Fixtures of the tests of hooks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that inductor compiled before these tests is used again; the workers of pytest-xdist
    share what they compile, as each kernel takes the compiler seconds."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "inductor"
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        yield
