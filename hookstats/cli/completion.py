"""completion: print the script by which a shell completes commands, options, runs and layers.

The shell asks hookstats at each press of the tab key, through argcomplete, so the script stays
valid when hookstats is updated. Append it with `>>` or write it with `>` to the file below.

examples:
  hookstats completion bash     the end of ~/.bashrc
  hookstats completion zsh      the end of ~/.zshrc
  hookstats completion fish     ~/.config/fish/completions/hookstats.fish
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(options: argparse.Namespace) -> int:
    print(_require().shellcode(["hookstats"], shell=options.shell).strip())
    return 0


def answer(parser: argparse.ArgumentParser) -> None:
    """Tell the shell that asks what may come next, and end the process.

    Without argcomplete, return.

    Runs are completed by the directories that hold some, `--layer` by the layers of the run.
    """
    from hookstats.records.keys import CHOICES, MODULE_KINDS, PARAMETER_KINDS

    with suppress(ImportError):
        complete, kinds = _require(), (*MODULE_KINDS, *PARAMETER_KINDS, "attention", CHOICES)
        for action in _actions(parser):
            if action.dest in ("run", "a", "b", "directory"):
                action.completer = _runs  # type: ignore[attr-defined]
            elif action.dest == "layer":
                action.completer = _layers  # type: ignore[attr-defined]
            elif action.dest == "kind":
                action.completer = complete.ChoicesCompleter(kinds)  # type: ignore[attr-defined]
        complete.autocomplete(parser)


def _require() -> Any:
    try:
        import argcomplete
        import argcomplete.completers
    except ImportError as error:
        raise ImportError(
            f"completion needs argcomplete ({error}): pip install 'hookstats[cli]'"
        ) from error
    return argcomplete


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The actions of a parser and of its subcommands."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _actions(command)
    return found


def _runs(prefix: str, **asked: Any) -> list[str]:
    """The runs that begin with `prefix`, and the directories on the way to others."""
    from hookstats.runs.format import RUN_JSON

    head, slash, _ = prefix.rpartition("/")
    found = []
    with suppress(OSError):
        for inside in Path(head + slash or ".").iterdir():
            path = head + slash + inside.name
            if path.startswith(prefix) and inside.is_dir() and not inside.name.startswith("."):
                found.append(path if (inside / RUN_JSON).is_file() else f"{path}/")
    return sorted(found)


def _layers(prefix: str, parsed_args: argparse.Namespace, **asked: Any) -> list[str]:
    """The layers and parameters of the run that the command names."""
    from hookstats.runs.files import read_json
    from hookstats.runs.format import rank_json

    path = getattr(parsed_args, "run", None) or getattr(parsed_args, "a", None)
    if not isinstance(path, Path):
        return []
    with suppress(OSError, ValueError, KeyError, TypeError):
        header = read_json(path / rank_json(0))["header"]
        return [*header["modules"], *header["parameters"]]
    return []
