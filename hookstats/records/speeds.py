"""Names of the scalars that say how fast a training run is, rather than how it goes."""

COST = "watch_seconds"
"""Seconds in which hooks held their lock, and in which steps were closed, on the threads of the
training, since the step before was closed. A device's own work is not in it."""
RATE = "steps_per_second"
SPEEDS = frozenset({COST, RATE})
