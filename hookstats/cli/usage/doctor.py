"""doctor: check the installation: versions, which kernels and hooks are in use, and why not others.

Compares one small update with the reference in plain PyTorch. What is broken comes with the command
that mends it. Please add the output of `hookstats doctor` to every bug report.
The exit code is 0 if recording works, 1 if something is broken.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command always checks everything."""
