"""Runs a function in a child that is forked, and never waits for it for ever."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

import pytest

SECONDS = 60


def in_child(function: Callable[[], object]) -> None:
    """Call `function` in a fork of this process; fails where it raises, or does not return."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, "the child failed; it says why on stderr"
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail(f"the child did not return in {SECONDS} s")
