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
    assert asked(runs, "hookstats show ru") == ["runs/"]
    assert asked(runs, "hookstats show runs/f") == ["runs/first", "runs/folder/"]
    layers = ["encoder", "encoder.weight", "encoder.bias"]
    assert asked(runs, "hookstats show runs/first --layer e") == layers
    assert asked(runs, "hookstats compare runs/first runs/first --kind param_") == ["param_grad"]
    assert asked(runs, "hookstats show runs/first --kind o") == ["output", "optimizer_state"]
    assert asked(runs, "hookstats show nowhere --layer e") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    result = call("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "_ARGCOMPLETE" in result.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(result.out)
        subprocess.run([shell, "-n", script], check=True, timeout=60)


def ask(shell: str, runs: Path, *command: str) -> str:
    """What a shell prints that has the script beside it and finds `hookstats`."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    program = runs / "bin" / "hookstats"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hookstats "$@"\n')
    program.chmod(0o755)
    (runs / "script").write_text(call("completion", shell).out)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, *command],
        cwd=runs,
        env={**os.environ, "PATH": path, "HOME": str(runs), "ZDOTDIR": str(runs), "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_bash_completes(runs: Path) -> None:
    line = "hookstats show runs/fi"
    asks = (
        f'source ./script; COMP_LINE="{line}" COMP_POINT={len(line)} COMP_TYPE=9; '
        f"COMP_WORDS=({line}) COMP_CWORD=2; _python_argcomplete hookstats; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert ask("bash", runs, "-c", asks).split() == ["runs/first"]


def test_fish_completes(runs: Path) -> None:
    asks = 'source script; complete -C "hookstats show runs/fi"'
    assert ask("fish", runs, "--no-config", "-c", asks).split() == ["runs/first"]


def test_zsh_completes(runs: Path) -> None:
    """By a tab key, in a terminal: zsh completes nowhere else."""
    begin = "autoload -Uz compinit; compinit -u -D; source ./script; print ready\n"
    (runs / ".zshrc").write_text(begin)
    asks = """
        zmodload zsh/zpty
        zpty shell zsh -d -i
        zpty -r shell told '*ready*'
        zpty -w -n shell $'hookstats show runs/fi\\t'
        zpty -r shell told '*runs/first*'
        print -r -- $told
    """
    assert "hookstats show runs/first" in ask("zsh", runs, "-d", "-c", asks)


def test_without_argcomplete_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    result = call("completion", "bash")
    assert (result.code, result.out) == (2, "")
    assert "pip install 'hookstats[cli]'" in result.err
