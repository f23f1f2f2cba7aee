"""The command line as a whole: help, exit codes, errors in one line, pipes and colours."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch
from support.commands import call, healthy, write_run
from support.payloads import payload_of
from support.samples import record_of

from hookstats._version import __version__
from hookstats.cli import COMMANDS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *map(healthy, range(3)))


def test_help_names_every_command() -> None:
    result = call("--help")
    assert (result.code, result.err) == (0, "")
    assert COMMANDS == (
        "demo",
        "check",
        "run",
        "ls",
        "show",
        "top",
        "compare",
        "report",
        "export",
        "merge",
        "doctor",
        "completion",
    )
    for name in COMMANDS:
        assert re.search(rf"^    {name}\s", result.out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = call(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: hookstats {name} ")
    assert name == "doctor" or f"examples:\n  hookstats {name}" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_commands_that_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.setattr(import_module(f"hookstats.cli.{name}"), "run", lambda options: 0)
    usage = import_module(f"hookstats.cli.{name}").__doc__
    for line in re.findall(r"^  hookstats (.*)$", usage, re.MULTILINE):
        command, *_ = re.split(r" {3,}", line)
        assert call(*shlex.split(command)).code == 0


def test_options_stand_anywhere(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", *map(healthy, range(3)))
    out = tmp_path / "page.html"
    for arguments in (
        [run, "--steps", "0:1", other, "-o", out],
        ["-o", out, run, "--steps", "0:1", other],
        [run, other, "--steps=0:1", "-o", out],
    ):
        assert call("report", *arguments) == (0, f"{out}\n", "")
        page = payload_of(out.read_text())
        assert [one["name"] for one in page["others"]] == ["other"]
        assert [first for first, *_ in page["spans"]] == [0, 1]
    assert call("compare", run, "--steps", other).code == 2
    said = call("report", run, "--steps", "0:1", other, "third").err
    assert said.startswith("usage: hookstats")
    assert said.endswith("error: unrecognized arguments: third\n")
    assert "the following arguments are required: RUN" in call("report", "--steps", "0:1").err
    assert call("show", "--", run).code == 0


def test_the_version() -> None:
    assert call("--version") == (0, f"hookstats {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shwo"], "hookstats: error: 'shwo': no such command; did you mean 'show'?"),
        (["--traceback", "exprot"], "'exprot': no such command; did you mean 'export'"),
        (["xyz"], "hookstats: error: 'xyz': no such command\n"),
    ],
)
def test_a_mistyped_command_names_similar_ones(arguments: list[str], said: str) -> None:
    result = call(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


HEAVY = {"numpy", "torch", "pyarrow", "rich", "matplotlib", "pandas", "sklearn", "inspect"}


def test_help_and_mistakes_import_no_large_library() -> None:
    asked = [
        ["--help"],
        ["--version"],
        ["shwo"],
        ["show"],
        *([name, "--help"] for name in COMMANDS),
    ]
    code = (
        "import runpy, sys\n"
        f"for arguments in {asked!r}:\n"
        "    sys.argv = ['hookstats', *arguments]\n"
        "    try:\n"
        "        runpy.run_module('hookstats', run_name='__main__')\n"
        "    except SystemExit:\n"
        "        pass\n"
        f"    heavy = {HEAVY!r} & sys.modules.keys()\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("usage: hookstats") >= len(COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["shwo"],
        ["show"],
        ["show", "a", "--sort", "size"],
        ["top", "a", "--rank", "-1"],
        ["top", "a", "--limit", "x"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    result = call(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "usage: hookstats" in result.err


READERS = [
    ["show", "RUN"],
    ["top", "RUN", "--once"],
    ["compare", "RUN", "RUN"],
    ["report", "RUN", "-o", "report.html"],
    ["export", "RUN", "-o", "run.csv"],
]


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_a_missing_run_is_an_error_in_one_line(
    command: list[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    result = call(*command)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"hookstats {command[0]}: error: path = 'RUN': no such run\n"
    result = call(*(word.replace("RUN", "rnu") for word in command))
    assert result.err == (
        f"hookstats {command[0]}: error: path = 'rnu': no such run; did you mean 'run'?\n"
    )
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_what_is_no_run_is_an_error_in_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("RUN").mkdir()
    result = call(*command)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"hookstats {command[0]}: error: path = 'RUN': ")
    assert result.err.count("\n") == 1
    Path("RUN", "run.json").write_text("{")
    result = call(*command)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"hookstats {command[0]}: error: RUN/run.json: damaged")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "command", [c for c in READERS if c[0] != "compare"], ids=lambda command: command[0]
)
def test_a_damaged_part_is_warned_of_and_the_rest_is_read(
    command: list[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    part = sorted((run / "tensors").iterdir())[1]
    part.write_bytes(part.read_bytes()[:-100])
    result = call(*(word.replace("RUN", "run") for word in command))
    assert result.code == 0
    assert result.out
    assert result.err.startswith("hookstats: warning: ")
    assert part.name in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "package", "advice"),
    [
        (["show", "RUN"], "rich", "pip install 'hookstats[cli]'"),
        (["top", "RUN"], "rich", "pip install 'hookstats[cli]'"),
        (["compare", "RUN", "RUN"], "rich", "pip install 'hookstats[cli]'"),
        (["show", "RUN"], "pyarrow", "pip install 'hookstats[store]'"),
        (["demo", "--out", "out"], "sklearn", "pip install 'hookstats[demo]'"),
        (["demo", "--out", "out"], "rich", "pip install 'hookstats[cli]'"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    command: list[str],
    package: str,
    advice: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    result = call(*(word.replace("RUN", "run") for word in command))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"hookstats {command[0]}: error: ")
    assert result.err.endswith(f"{advice}\n")
    assert result.err.count("\n") == 1
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "command",
    [
        ["report", "run", "-o", "missing/report.html"],
        ["export", "run", "-o", "missing/run.csv"],
        ["export", "run", "-o", "missing/run.parquet"],
    ],
    ids=lambda command: command[2 if command[0] == "report" else 3],
)
def test_an_unwritable_output_is_named(
    command: list[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    result = call(*command)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"hookstats {command[0]}: error: ")
    assert "missing" in result.err
    assert "No such file or directory" in result.err
    assert result.err.count("\n") == 1


def test_a_traceback_is_there_for_those_who_ask(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        call("--traceback", "show", tmp_path / "run")


@pytest.mark.check
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    x = torch.randn(4, 2)
    wide = record_of({(f"layer{i}", "output"): (x, 1) for i in range(3000)}, channel_bins=None)
    run = write_run(tmp_path / "run", wide)
    command = f"{sys.executable} -m hookstats show {run} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].strip() == "step 0"
    assert done.stdout.splitlines()[1] == "141"


@pytest.mark.check
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hookstats", "demo", "--out", tmp_path / "out", "--epochs", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "out" / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # Of the disk, maybe, and what the run has.
    assert all(line.startswith("hookstats: ") for line in err.splitlines()), err


ESCAPE = "\x1b["


def in_terminal(command: str, run: Path, **environment: str) -> str:
    """What a command prints into a terminal of 80 columns."""
    done = subprocess.run(
        ["script", "-qec", f"stty cols 80; {command}", "/dev/null"],
        cwd=run.parent,
        env={**os.environ, "TERM": "xterm", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    return done.stdout


@pytest.mark.check
@pytest.mark.skipif(shutil.which("script") is None, reason="needs script, of util-linux")
def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    x = torch.randn(8, 4)
    x[0, 0] = torch.nan
    run = write_run(tmp_path / "run", record_of({("a", "output"): (x, 1)}, channel_bins=None))
    command = f"{sys.executable} -m hookstats show run"
    assert ESCAPE in in_terminal(command, run)
    plain = in_terminal(command, run, NO_COLOR="1")
    assert "\x1b[1;31m" not in plain
    assert "\x1b[33m" not in plain
    assert ESCAPE not in call("show", run).out


@pytest.mark.check
def test_a_terminal_of_ascii_gets_escapes(tmp_path: Path) -> None:
    name = "\u5c42\U0001f525"
    run = write_run(tmp_path / "run", record_of({(name, "output"): (torch.ones(8, 4), 1)}))
    done = subprocess.run(
        [sys.executable, "-m", "hookstats", "show", str(run)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u5c42\U0001f525" in done.stdout


@pytest.mark.parametrize("command", [["show", "."], ["report", "."], ["doctor"]])
def test_without_stdout_it_says_so(command: list[str]) -> None:
    shell = f"exec {shlex.quote(sys.executable)} -m hookstats {shlex.join(command)} >&-"
    done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.stderr == f"hookstats {command[0]}: error: stdout is closed\n"
    assert done.returncode == 2


SCRIPT = """
import json
import sys
from hookstats.cli import main
commands, heavy = json.loads(sys.argv[1])
for command in commands:
    assert main(command) == 0
    assert not {*heavy} & sys.modules.keys(), command
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.check)])
def test_a_finished_run_is_read_without_torch_or_pandas(ranks: int, tmp_path: Path) -> None:
    # It has histograms, and ends in an explosion.
    changes = [{("head", "output"): 10.0 ** max(0, step - 10)} for step in range(14)]
    for rank in range(ranks):
        records = [healthy(step, changes[step], rank) for step in range(14)]
        run = str(write_run(tmp_path / "run", *records, rank=rank))
    commands = [
        ["ls", str(tmp_path)],
        ["show", run],
        ["show", run, "--layer", "head", "--kind", "output"],
        ["top", run, "--once"],
        ["compare", run, run],
        ["report", run, "-o", str(tmp_path / "page.html")],
    ]
    # Ranks that are merged are encoded anew by pyarrow.array, which imports pandas.
    heavy = ["torch"] if ranks > 1 else ["torch", "pandas"]
    check(SCRIPT, json.dumps([commands, heavy]))


SERIES = """
import sys
import hookstats as hs
series = hs.open_run(sys.argv[1]).series("head", "output")["head", "output"]
assert len(series.rms) == len(series.channels.rms) == 3
assert not {"pandas", "torch"} & sys.modules.keys()
"""


def test_a_series_is_read_without_torch_or_pandas(tmp_path: Path) -> None:
    check(SERIES, str(write_run(tmp_path / "run", *map(healthy, range(3)))))


def check(script: str, argument: str) -> None:
    """Run a script with an argument in a process of its own; nothing may go wrong."""
    command = [sys.executable, "-c", script, argument]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr[-400:]) == (0, "")
