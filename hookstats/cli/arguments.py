"""The arguments that several subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_run(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """Add the positional argument for a run directory."""
    parser.add_argument(
        name,
        metavar=name.upper(),
        type=location,
        help="run directory, as written by `watch(..., out=...)`, or its URL",
    )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add the script that is to be run, and its arguments."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script"
    )


def location(text: str) -> Path | str:
    """The type of an argument: a path, or a URL as it is."""
    return text if "://" in text else Path(text)


def natural(text: str) -> int:
    """The type of an argument: an integer, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer, 0 or more")
    return int(text)


def add_rank(parser: argparse.ArgumentParser) -> None:
    """Add the option for the rank whose records are read."""
    parser.add_argument(
        "--rank",
        type=natural,
        metavar="N",
        help="only what this process of a distributed run recorded (default: all, merged)",
    )


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the option for rules that check the run now."""
    parser.add_argument(
        "--rules",
        metavar="RULES",
        help="check the steps now, by 'default' or one rule such as 'loss' (default: print what "
        "the rules said while the run was recorded)",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose sites."""
    parser.add_argument(
        "--layer",
        action="append",
        metavar="GLOB",
        help="only layers with this name, such as 'encoder.*'; may be repeated",
    )
    parser.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="only this kind, such as output, grad_output, param_grad, or a glob; may be repeated",
    )
