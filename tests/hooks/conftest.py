"""Fixtures of the tests of hooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that inductor compiled before is used again."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("inductor")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        yield
