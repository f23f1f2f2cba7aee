"""Settings of the tests that pyproject.toml cannot hold."""

from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("hookstats", deadline=None, print_blob=True)
settings.load_profile("hookstats")
