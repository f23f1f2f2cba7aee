"""The version of hookstats, written here and nowhere else."""

__version__ = "0.1.0"
