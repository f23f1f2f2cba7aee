"""completion: print the script by which a shell completes commands, options, runs and layers.

The shell asks hookstats itself at each press of the tab key, by argcomplete, so the script stays
right when hookstats is updated. Put the script where the examples say, by `>>` or `>`.

examples:
  hookstats completion bash     the end of ~/.bashrc
  hookstats completion zsh      the end of ~/.zshrc
  hookstats completion fish     ~/.config/fish/completions/hookstats.fish
"""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")
