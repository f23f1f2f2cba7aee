"""The processes that a script starts: which of them begin in another way."""

from __future__ import annotations

import os
import posix
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
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


class Again:
    """What runs instead of the `run` of a process, which has the connection."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def __call__(self) -> None:
        self.run.__self__.connection.send("first")  # type: ignore[attr-defined]
        self.run()


class Says:
    """A process with a `run` of its own."""

    def __init__(self, connection: Any) -> None:
        super().__init__(target=len)  # type: ignore[call-arg]
        self.connection = connection

    def run(self) -> None:
        self.connection.send("last")


class Spawned(Says, get_context("spawn").Process):  # type: ignore[misc]
    """By spawn."""


class Forked(Says, get_context("fork").Process):  # type: ignore[misc]
    """By fork."""


def received(method: str, of_class: Any = None) -> list[str]:
    """What a process sends; with a class, it is made of that."""
    context = get_context(method)
    here, there = context.Pipe(duplex=False)
    if of_class is None:
        process: Any = context.Process(target=says, args=(there,))  # type: ignore[attr-defined]
    else:
        process = of_class(there)
    process.start()
    found = [here.recv()]
    while found[-1] != "last":
        found.append(here.recv())
    process.join(60)
    assert process.exitcode == 0
    assert "run" not in vars(process)
    return found


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_with_a_target_gets_another(method: str) -> None:
    children = Children(["train.py"], Instead, COMMAND)
    with children:
        assert received(method) == ["first", "last"]
    assert children.started
    assert received(method) == ["last"]


@pytest.mark.parametrize(("method", "of_class"), [("spawn", Spawned), ("fork", Forked)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_with_a_run_of_its_own_gets_another(method: str, of_class: Any) -> None:
    children = Children(["train.py"], Again, COMMAND)
    with children:
        assert received(method, of_class) == ["first", "last"]
    assert children.started
    assert received(method, of_class) == ["last"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_others_that_may_train_are_noted(tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text("print(1)")
    children = Children(["train.py"], Instead, COMMAND)
    with children:
        for _ in range(2):
            subprocess.run([sys.executable, script, "--lr", "1", "--epochs", "2"], check=True)
        subprocess.run(f"{sys.executable} {script}", shell=True, check=True)
        subprocess.run(["true"], check=True)
        received("fork")
        assert len(children.others) == 2
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    command = f"{sys.executable} {script}"
    assert children.others == [f"{command} --lr 1", command, "os.fork"]
    assert os.fork is posix.fork


def test_commands_that_others_start_are_noted_too(tmp_path: Path) -> None:
    for name in ("other.py", "last.py"):
        (tmp_path / name).write_text("print(1)")
    other, last = (f"{sys.executable} {tmp_path / name}" for name in ("other.py", "last.py"))
    children = Children(["train.py"], Instead, COMMAND)
    before = os.system, os.execv, os.execve
    (tmp_path / "train.sh").write_text("true")
    with children:
        subprocess.run(["bash", "-e", tmp_path / "train.sh"], check=True)
        assert os.system(f"cd / && A=1 {other} --lr 1") == 0
        subprocess.run(["env", "A=1", "nice", "-n", "1", *last.split()], check=True)
        subprocess.run(["bash", "-ec", f"true; {last} again"], check=True)
        os.system(f"echo {other}; ls {sys.executable}; {sys.executable} -c 'print(1)'")
    shell = f"bash -e {tmp_path / 'train.sh'}"
    assert children.others == [shell, f"{other} --lr 1", last, f"{last} again"]
    assert (os.system, os.execv, os.execve) == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_are_left_alone() -> None:
    before = BaseProcess.start, subprocess.Popen.__init__, os.fork
    children = Children(["train.py"], Instead, COMMAND)
    with children:
        loader: Any = torch.utils.data.DataLoader(range(3), num_workers=1)  # type: ignore[arg-type]
        assert [x.item() for x in loader] == [0, 1, 2]
        with get_context("fork").Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
        with ProcessPoolExecutor(1) as executor:
            assert list(executor.map(abs, [-1])) == [1]
    assert not children.started
    assert children.others == []
    assert (BaseProcess.start, subprocess.Popen.__init__, os.fork) == before


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
