"""Completion: scripts for shells, and what they get when they ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import call
from torch import nn

import hookstats as hs

pytest.importorskip("argcomplete")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where a run of two layers is, and a directory with no run."""
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    hs.watch(model, out=tmp_path / "runs" / "first", rules=()).close()
    (tmp_path / "runs" / "folder").mkdir()
    return tmp_path


def asked(directory: Path, line: str) -> list[str]:
    """What a shell in the directory is told at the end of a line."""
    told = directory / "told"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(told),
    }
    command = [sys.executable, "-m", "hookstats"]
    environment = {**os.environ, **environment}
    subprocess.run(command, cwd=directory, env=environment, check=True, timeout=60)
    return [word.strip() for word in told.read_text().splitlines()]


def test_commands_options_runs_and_layers_are_completed(runs: Path) -> None:
    assert asked(runs, "hookstats co") == ["compare", "completion"]
    assert asked(runs, "hookstats show runs/first --so") == ["--sort"]
    assert asked(runs, "hookstats show runs/f") == ["runs/first", "runs/folder/"]
    layers = ["encoder", "encoder.weight", "encoder.bias"]
    assert asked(runs, "hookstats show runs/first --layer e") == layers
    assert asked(runs, "hookstats show runs/first --kind o") == ["output", "optimizer_state"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    result = call("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "_ARGCOMPLETE" in result.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(result.out)
        subprocess.run([shell, "-n", script], check=True, timeout=60)


def test_bash_completes(runs: Path) -> None:
    program = runs / "bin" / "hookstats"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hookstats "$@"\n')
    program.chmod(0o755)
    (runs / "script").write_text(call("completion", "bash").out)
    line = "hookstats show runs/fi"
    asks = (
        f'source ./script; COMP_LINE="{line}" COMP_POINT={len(line)} COMP_TYPE=9; '
        f"COMP_WORDS=({line}) COMP_CWORD=2; _python_argcomplete hookstats; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    command = ["bash", "-c", asks]
    done = subprocess.run(command, cwd=runs, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["runs/first"]


def test_without_argcomplete_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    result = call("completion", "bash")
    assert (result.code, result.out) == (2, "")
    assert "pip install 'hookstats[cli]'" in result.err
