"""check_integer() and its kin: integer arguments, checked in one way."""

from __future__ import annotations

from operator import index


def check_integer(name: str, value: object, least: int | None, most: int | None = None) -> int:
    """`value` as an int, if it is an integer in least..most; None leaves an end open.

    Whatever Python takes as an index is an integer, so NumPy's integers are; bools are not.

    Raises:
        ValueError: `value` is no integer, or outside the range; the message begins with `name`.
    """
    return _integer(name, value, least, most, "")


def check_optional_integer(
    name: str, value: object, least: int | None, most: int | None = None
) -> int | None:
    """As `check_integer`, but None is returned as it is."""
    return None if value is None else _integer(name, value, least, most, ", or None")


def check_moments(value: object) -> int:
    """`value` as an int, if it is 2 or 4: the highest moments that were asked for.

    Raises:
        ValueError: `value` is neither.
    """
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number not in (2, 4):
        raise ValueError(f"moments = {value!r}: expected 2 or 4")
    return number


def _integer(name: str, value: object, least: int | None, most: int | None, also: str) -> int:
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if (
        number is None
        or (least is not None and number < least)
        or (most is not None and number > most)
    ):
        raise ValueError(f"{name} = {value!r}: expected an integer{_range(least, most)}{also}")
    return number


def _range(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f", {most} or less"
    return f", {least} or more" if most is None else f" in {least}..{most}"
