"""The console that subcommands print to, and their wording of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookstats.show.grid import require_rich
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """A console on stdout that prints names as they are, even "[red]" and ":smile:", but for what
    would drive the terminal, which it shows `printable`.

    It leaves a broken pipe to `main`, which knows the right exit code.
    """
    rich = require_rich()

    class StdoutConsole(rich.console.Console):  # type: ignore[misc, name-defined]
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text, lines=True), **options)

    console: Console = StdoutConsole(highlight=False, markup=False, emoji=False)
    return console


def describe(error: BaseException | str) -> str:
    """An error or a warning in one printable line, without its class and the error number."""
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{error.filename}: "
        return printable(named + error.strerror)
    # str() of a KeyError is its argument's repr.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return printable(" ".join(str(text).split())) or type(error).__name__
