"""The processes that a script starts: which of them begin in another way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import torch

from hookstats.integrations.children import Children

COMMAND = ("-c", "import sys; print(sys.argv[1:])")


class Instead:
    """What runs instead of a target: it sends more."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target

    def __call__(self, connection: Any) -> None:
        connection.send("first")
        self.target(connection)


def says(connection: Any) -> None:
    connection.send("last")


def received(method: str) -> list[str]:
    """What a process sends."""
    context = get_context(method)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=says, args=(there,))  # type: ignore[attr-defined]
    process.start()
    found = [here.recv()]
    while found[-1] != "last":
        found.append(here.recv())
    process.join(60)
    return found


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_with_a_target_gets_another(method: str) -> None:
    children = Children(["train.py"], Instead, COMMAND)
    with children:
        assert received(method) == ["first", "last"]
    assert children.started
    assert received(method) == ["last"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_are_left_alone() -> None:
    before = BaseProcess.start, subprocess.Popen.__init__
    children = Children(["train.py"], Instead, COMMAND)
    with children:
        loader = torch.utils.data.DataLoader(range(3), num_workers=1)  # type: ignore[arg-type]
        assert [x.item() for x in loader] == [0, 1, 2]
        with get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        with ProcessPoolExecutor(1) as executor:
            assert list(executor.map(abs, [-1])) == [1]
    assert not children.started
    assert (BaseProcess.start, subprocess.Popen.__init__) == before


@pytest.mark.parametrize("script", [["/a/train.py"], ["-m", "package.train"]])
def test_a_command_that_runs_the_script_again_is_another(script: list[str]) -> None:
    children = Children(script, Instead, COMMAND)
    with children:
        for other in ([sys.executable, "-c", "print(1)"], f"{sys.executable} -c 'print(1)'"):
            done = subprocess.run(other, shell=isinstance(other, str), capture_output=True)
            assert done.stdout == b"1\n"
        assert not children.started
        again = [sys.executable, *script, "--lr", "1"]
        printed = subprocess.run(again, capture_output=True, text=True).stdout
    assert printed == f"{[*script, '--lr', '1']}\n"
    assert children.started
