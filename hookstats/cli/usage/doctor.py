"""doctor: check the installation: versions, the kernels and hooks in use, and why others are not.

It compares one small update with the reference in plain PyTorch. If something is broken, the report
has the command that repairs it. Please add the output of `hookstats doctor` to every bug report.
The exit code is 0 if recording works, 1 if something is broken.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command always checks everything."""
