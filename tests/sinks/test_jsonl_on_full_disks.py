"""JSONL where the disk takes no more: lines are whole, and none comes twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.forks import in_child
from support.samples import record_of

from hookstats.sinks import JSONL

if sys.platform == "win32":
    pytest.skip("Windows has no limit of file sizes, and no fork", allow_module_level=True)

import resource

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def steps(path: Path) -> Counter[int]:
    """How many lines of records, or of scalars as -1 - step, each step has; all must be whole."""
    content = path.read_text()
    assert content.endswith("\n")
    found = [json.loads(line) for line in content.splitlines()]
    return Counter(-1 - line["step"] if "scalars" in line else line["step"] for line in found)


def limit(size: int) -> None:
    """Let no file of this process grow beyond this; -1: any size."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))


@pytest.mark.parametrize("sites", [3, 300])
def test_what_failed_is_missing_and_all_else_is_there_once(tmp_path: Path, sites: int) -> None:
    """Of records that are smaller than the buffers of files, and of larger ones."""
    path = tmp_path / "stats.jsonl"
    record = record_of({(str(i), "output"): (torch.ones(2, 3), 1) for i in range(sites)})

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # which would end the process
        sink = JSONL(path)
        expected = Counter({0: sites})
        sink(record)
        size = path.stat().st_size
        for step in range(1, 12):
            limit(int(1.5 * size) if step < 6 else -1)
            with suppress(OSError):
                sink(replace(record, step=step))
                expected[step] = sites
            with suppress(OSError):
                sink.write_scalars(step, 0, {"loss": 1.0})
                expected[-1 - step] = 1
            assert steps(path) == expected
        sink.close()
        assert steps(path) == expected
        assert expected[1] == 0
        assert expected[11] == sites

    in_child(write)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = JSONL(path)
    sink.write_scalars(2, 0, {"loss": 1.0})
    assert json.loads(os.read(reader, 1 << 16))["step"] == 2
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        sink.write_scalars(3, 0, {"loss": 1.0})
    sink.close()
