"""Run directories: writing one while training runs, and reading one at any time."""
