"""Recorder in processes: interpreters that end, children that are forked, ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.closed import Closed
from support.paths import python_path
from support.samples import BINS, CHANNEL_BINS, sample

from hookstats.runs.run import open_run
from hookstats.runs.world import current_rank, world_size
from hookstats.runs.writer import RunWriter
from hookstats.watching.recorder import Recorder

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}

SCRIPT = """
import os, sys
from support.closed import Closed
from support.samples import BINS, CHANNEL_BINS
from hookstats.runs.writer import RunWriter
from hookstats.watching.recorder import Recorder

HEADER = {"bins": BINS, "channel_bins": CHANNEL_BINS}
"""
"""What comes before each script that `run_script` runs."""


def run_script(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT and `script` in an interpreter of its own."""
    code = SCRIPT + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.check
def test_what_was_submitted_is_written_when_the_interpreter_ends(tmp_path: Path) -> None:
    script = """
        recorder = Recorder(RunWriter(sys.argv[1], HEADER, seconds_per_part=3600))
        for step in range(50):
            recorder.submit(Closed(), step)
        raise SystemExit(3)
    """
    ended = run_script(script, tmp_path)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert open_run(tmp_path).steps == list(range(50))


def test_a_forked_child_ends_and_leaves_the_run_alone(tmp_path: Path) -> None:
    script = """
        import warnings
        unstarted = Recorder(RunWriter(sys.argv[1] + "/a", HEADER, seconds_per_part=0))
        recorder = Recorder(RunWriter(sys.argv[1] + "/b", HEADER, seconds_per_part=0))
        recorder.submit(Closed(), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
        step = 1 if child else 100
        steps = [Closed() for _ in range(4)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for flush, two in ((recorder, steps[:2]), (unstarted, steps[2:])):
                for closed in two:
                    flush.submit(closed, step)
                flush.drain()
        assert [closed.released for closed in steps] == [1] * 4
        print(len(caught), *{str(w.message) for w in caught}, flush=True)
        if child:
            _, status = os.waitpid(child, 0)
            assert status == 0, status
        recorder.close({"pid": os.getpid()})
    """
    ended = run_script(script, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    lost = "hookstats: recording in a forked process failed: no recorder thread; its steps are lost"
    assert sorted(ended.stdout.splitlines()) == ["0", f"2 {lost}"]
    assert open_run(tmp_path / "a").steps == [1]
    assert open_run(tmp_path / "b").steps == [0, 1]
    assert open_run(tmp_path / "b").table().column("step").to_pylist().count(1) == len(sample())


def test_rank(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert current_rank() == 0
    monkeypatch.setenv("RANK", "3")
    assert current_rank() == 3
    recorder = Recorder(None)
    monkeypatch.setenv("RANK", "")
    assert (current_rank(), world_size()) == (0, 1)
    monkeypatch.setenv("RANK", "9" * 20)
    with pytest.raises(ValueError, match="expected an integer"):
        current_rank()
    monkeypatch.setenv("WORLD_SIZE", "9" * 20)
    monkeypatch.setenv("RANK", "3")
    assert world_size() == 4
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK = 'first' in the environment: expected an integer"):
        current_rank()
    recorder.submit(Closed(), 0)
    recorder.close()
    assert recorder.latest is not None
    assert recorder.latest.rank == 3
    assert Recorder(RunWriter(tmp_path, HEADER, rank=2)).rank == 2


def test_rank_of_torch_distributed(tmp_path: Path, monkeypatch) -> None:
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("RANK", "3")
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        assert current_rank() == 0
    finally:
        distributed.destroy_process_group()


@pytest.mark.check
def test_a_process_that_is_stopped_disables_no_sink(tmp_path: Path) -> None:
    """As by the scheduler of a cluster, or with a laptop that sleeps."""
    script = """
        import subprocess, time
        steps = []
        def sink(record):
            time.sleep(0.3)
            steps.append(record.step)
        recorder = Recorder(RunWriter(sys.argv[1], HEADER), [sink])
        recorder.patience = 1.0
        stop = f"sleep 0.5; kill -STOP {os.getpid()}; sleep 3; kill -CONT {os.getpid()}"
        process = subprocess.Popen(["sh", "-c", stop])
        for step in range(10):
            recorder.submit(Closed(), step)
        recorder.close()
        assert steps == list(range(10)), steps
        assert recorder.failures == {}, recorder.failures
        process.wait()
    """
    ended = run_script(script, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.check
def test_where_no_thread_starts_any_more_all_is_written(tmp_path: Path) -> None:
    """As from Python 3.12 on, while the interpreter ends."""
    script = """
        import atexit, threading

        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        def given(record):
            print(record.step)

        hangs = threading.Event()
        sinks = [lambda record: hangs.wait(), given]
        recorder = Recorder(RunWriter(sys.argv[1], HEADER), sinks)
        recorder.patience = 0.3
        for step in range(5):
            recorder.submit(Closed(), step)
        atexit.register(setattr, threading.Thread, "start", refuse)
        raise SystemExit(3)
    """
    ended = run_script(script, tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert "<lambda> failed: no return within 0.3 s; the sink is disabled" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.split() == [*"01234"]  # its thread was started before
    assert open_run(tmp_path).steps == list(range(5))
