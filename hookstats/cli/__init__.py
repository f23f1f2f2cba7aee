"""The command line, `hookstats` and `python -m hookstats`: one module per subcommand.

`cli/NAME.py` has the help of a subcommand in its docstring, its arguments and the function that
runs it. These modules import neither NumPy nor torch nor pyarrow before they run, so that help and
mistyped commands are answered at once.

Exit codes: 0 done; 1 the answer is no (compare: the runs differ, doctor: something is broken,
check: a fault); 2 an error, in one line on stderr; 130 interrupted; 141 the reader of a pipe went
away.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from hookstats._version import __version__
from hookstats.cli.output import describe
from hookstats.records.keys import did_you_mean
from hookstats.stats.printable import printable

COMMANDS = (
    *("demo", "check", "run", "ls", "show", "top"),
    *("compare", "report", "export", "merge", "doctor", "completion"),
)
INTERRUPTED = 128 + 2  # what shells report for a command that SIGINT ended
BROKEN_PIPE = 128 + 13  # and for one that SIGPIPE ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that `arguments`, by default those of the process, name.

    Returns:
        The exit code.
    Raises:
        SystemExit: after --help, --version or wrong arguments, as argparse does.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command = next((word for word in arguments if not word.startswith("-")), None)
    completing = "_ARGCOMPLETE" in os.environ  # a shell asks what may come next
    # argcomplete parses arguments in its own way.
    parser = _parser(_Parser if completing else _Command)
    if completing:
        import_module("hookstats.cli.completion").answer(parser)
    if command is not None and command not in COMMANDS:
        parser.error(f"{command!r}: no such command{did_you_mean(command, COMMANDS)}")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    module = import_module(f"hookstats.cli.{options.command}")
    run: Callable[[argparse.Namespace], int] = module.run
    if options.command in ("check", "run"):  # errors, warnings and output are the script's
        return run(options)
    if sys.stdout is None:  # `>&-`
        print(f"hookstats {options.command}: error: stdout is closed", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters that ASCII lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # Such as that a damaged part was left out.
            warnings.simplefilter("default", RuntimeWarning)
            warnings.showwarning = _show_warning
            code = run(options)
        sys.stdout.flush()  # here, where a broken pipe can still be handled
    except BrokenPipeError:
        # Python flushes stdout once more when it exits, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ImportError, KeyError, MemoryError, OSError, ValueError) as error:
        if options.traceback:
            raise
        print(f"hookstats {options.command}: error: {describe(error)}", file=sys.stderr)
        return 2
    return code


def _show_warning(message: Warning | str, *where: Any, **options: Any) -> None:
    print(f"hookstats: warning: {describe(message)}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show arguments `printable`."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, lines=True))


class _Command(_Parser):
    """The parser of a command, whose options may stand between its arguments."""

    _is_within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        passes_on = any(action.nargs == argparse.REMAINDER for action in self._actions)
        if self._is_within or passes_on:  # to a script
            return super().parse_known_args(args, namespace)
        self._is_within = True  # until Python 3.12.7 the next call comes back here
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


def _parser(kind: type[_Parser]) -> argparse.ArgumentParser:
    """The parser of all commands, each of which is parsed by a parser of this kind."""
    parser = _Parser(
        prog="hookstats",
        description="PyTorch's flight recorder: look at what `hookstats.watch` recorded.",
        epilog="`hookstats COMMAND --help` describes a command, with examples. "
        "Output has no colours where it is no terminal, or where NO_COLOR is set.",
    )
    parser.add_argument("--version", action="version", version=f"hookstats {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show the traceback of an error, to report it"
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", parser_class=kind
    )
    for name in COMMANDS:
        module = import_module(f"hookstats.cli.{name}")
        summary, _, details = (module.__doc__ or "").partition("\n\n")
        summary = summary.partition(": ")[2]
        command = commands.add_parser(
            name,
            help=summary.rstrip("."),
            description=summary[:1].upper() + summary[1:],
            epilog=details,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser
