"""The processes of multiprocessing that a script starts: which of them are watched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from hookstats.integrations.script import Recorder

STARTS = BaseProcess.start


class Says(Recorder):
    """Sends a word from each process that it would watch, instead of watching."""

    def __init__(self, connection: Any) -> None:
        super().__init__({}, None, Path("runs"))
        self.connection = connection

    @contextmanager
    def watching(self, *, is_child: bool = False) -> Iterator[None]:
        assert is_child
        self.connection.send("watched")
        yield
        self.connection.send("over")


def says(connection: Any) -> None:
    connection.send("target")


class _WithRun:
    """A process whose class overrides `run`."""

    def __init__(self, connection: Any) -> None:
        super().__init__(target=len)  # type: ignore[call-arg]
        self.connection = connection

    def run(self) -> None:
        self.connection.send("run")


class Spawned(_WithRun, get_context("spawn").Process):  # type: ignore[misc]
    """By spawn."""


class Forked(_WithRun, get_context("fork").Process):  # type: ignore[misc]
    """By fork."""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("overrides", [True, pytest.param(False, marks=pytest.mark.check)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_is_watched_whether_it_has_a_target_or_overrides_run(
    method: str, overrides: bool
) -> None:
    context: Any = get_context(method)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=says, args=(there,))
    if overrides:
        process = {"spawn": Spawned, "fork": Forked}[method](there)
    with Says(there)._watched_processes():
        process.start()
    there.close()  # so that a child that fails ends the wait
    found = [here.recv() for _ in range(3)]
    process.join(60)
    assert process.exitcode == 0
    assert found == ["watched", "run" if overrides else "target", "over"]
    assert "run" not in vars(process)
    assert BaseProcess.start is STARTS


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_are_left_alone() -> None:
    here, there = get_context("fork").Pipe(duplex=False)
    with Says(there)._watched_processes():
        loader: Any = torch.utils.data.DataLoader(range(3), num_workers=1)  # type: ignore[arg-type]
        assert [x.item() for x in loader] == [0, 1, 2]
        with get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        with ProcessPoolExecutor(1) as executor:
            assert list(executor.map(abs, [-1])) == [1]
    assert not here.poll()
