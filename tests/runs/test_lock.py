"""One writer of a rank at a time, and no wait for one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import python_path
from torch import nn

from hookstats import open_run, watch

SCRIPT = """
import sys, time
import torch
from torch import nn
from hookstats import watch

model = nn.Linear(2, 2)
w = watch(model, out=sys.argv[1], append=True)
model(torch.ones(1, 2))
w.step()
w._recorder.drain()
print("writes", flush=True)
time.sleep(60)
"""


def test_a_second_writer_is_refused_and_a_killed_one_restarts_at_once(tmp_path: Path) -> None:
    script = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        says = rf"out = .*: process {process.pid} on .* writes this run, expected a run"
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileExistsError, match=says):
            watch(nn.Linear(2, 2), out=tmp_path, append=True)
        assert sorted(tmp_path.rglob("*")) == before
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    watch(nn.Linear(2, 2), out=tmp_path, append=True).close()
    assert open_run(tmp_path).steps == [0]


def test_two_watches_of_one_process(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    first = watch(model, out=tmp_path, append=True)
    with pytest.raises(FileExistsError, match=f"process {os.getpid()} on"):
        watch(model, out=tmp_path, append=True)
    first.close()
    watch(model, out=tmp_path, append=True).close()


def test_a_watch_that_is_refused_leaves_no_lock(tmp_path: Path) -> None:
    watch(nn.Linear(2, 2), out=tmp_path).close()
    with pytest.raises(ValueError, match="as in this run"):
        watch(nn.Linear(3, 2), out=tmp_path, append=True)
    watch(nn.Linear(2, 2), out=tmp_path, append=True).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_release_the_lock(tmp_path: Path) -> None:
    w = watch(nn.Linear(2, 2), out=tmp_path)
    child = os.fork()
    if child == 0:
        w.close()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(FileExistsError, match="writes this run"):
        watch(nn.Linear(2, 2), out=tmp_path, append=True)
    w.close()
