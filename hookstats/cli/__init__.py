"""The command line, `hookstats` and `python -m hookstats`: one module a subcommand.

Exit codes: 0 done; 1 the answer is no (compare: the runs differ, doctor: something is broken);
2 an error, in one line on stderr; 130 interrupted; 141 the reader of a pipe went away.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from hookstats._version import __version__
from hookstats.cli import compare, demo, doctor, export, report, show, top
from hookstats.cli.output import describe

COMMANDS = (demo, show, top, compare, report, export, doctor)
INTERRUPTED = 128 + 2  # as shells say of a command that ended by SIGINT
BROKEN_PIPE = 128 + 13  # and by SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that `arguments` (by default the command line's) name; its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            # Of what could not be read, such as a damaged part.
            warnings.simplefilter("default", RuntimeWarning)
            warnings.showwarning = _show_warning
            code: int = options.function(options)
        sys.stdout.flush()  # here, where a broken pipe is still ours to handle
    except BrokenPipeError:
        # Python flushes stdout once more as it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ImportError, KeyError, OSError, ValueError) as error:
        if options.traceback:
            raise
        print(f"hookstats {options.command}: error: {describe(error)}", file=sys.stderr)
        return 2
    return code


def _show_warning(message: Warning | str, *where: Any, **options: Any) -> None:
    print(f"hookstats: warning: {describe(message)}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hookstats",
        description="PyTorch's flight recorder: look at what `hookstats.watch` recorded.",
        epilog="`hookstats COMMAND --help` tells more of a command, with examples. "
        "Colours are left out where the output is no terminal, or NO_COLOR is set.",
    )
    parser.add_argument("--version", action="version", version=f"hookstats {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show where an error comes from, to report it"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
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
        command.set_defaults(function=module.run)
    return parser
