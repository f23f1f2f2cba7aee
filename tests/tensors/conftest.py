"""Fixtures of the tests of tensors."""

from __future__ import annotations

import pytest
from support.traced import Block


@pytest.fixture
def block() -> Block:
    """In evaluation, so that nothing is dropped."""
    return Block().eval()
