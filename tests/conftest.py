"""Settings of the tests that pyproject.toml cannot hold."""

import pytest
import torch
from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("hookstats", deadline=None, print_blob=True)
settings.load_profile("hookstats")


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same random tensors in every run."""
    torch.manual_seed(0)
