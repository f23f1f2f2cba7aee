"""check_integer(), check_path() and their kin: integers and paths, each checked in one way."""

from __future__ import annotations

import os
from contextlib import suppress
from operator import index
from pathlib import Path


def check_integer(
    name: str, value: object, least: int | None, most: int | None = None, also: str = ""
) -> int:
    """`value` as an int, if it is an integer in least..most; None leaves an end open.

    Anything that Python accepts as an index is an integer, such as NumPy's integers; a bool is not.

    also: what else is expected, for the message.

    Raises:
        ValueError: `value` is no integer, or outside the range; the message begins with `name`.
    """
    # NumPy 1 takes its bools for indices, with a warning.
    if not (isinstance(value, bool) or getattr(value, "dtype", None) == "bool"):
        with suppress(TypeError):
            number = index(value)  # type: ignore[arg-type]
            if (least is None or number >= least) and (most is None or number <= most):
                return number
    raise ValueError(f"{name} = {value!r}: expected an integer{_range(least, most)}{also}")


def check_optional_integer(
    name: str, value: object, least: int | None, most: int | None = None
) -> int | None:
    """As `check_integer`, but None is returned as it is."""
    return None if value is None else check_integer(name, value, least, most, ", or None")


def _range(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f", {most} or less"
    return f", {least} or more" if most is None else f" in {least}..{most}"


def check_path(name: str, value: object) -> Path:
    """`value` as a path, if it is a str or an os.PathLike of one.

    Raises:
        ValueError: `value` is something else, such as bytes, or has a NUL, which no path can have.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ValueError(f"{name} = {value!r}: expected a path, as a str or a pathlib.Path")
    if "\0" in text:
        raise ValueError(f"{name} = {text!r}: expected a path without NUL characters")
    return Path(text)
