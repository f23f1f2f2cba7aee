"""Values that a stranger may put into a run's JSON and columns: odd, huge, deep, or evil text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

TEXTS = (
    "",
    "\x1b]0;owned\x07\x1b[2J",
    "=cmd|' /C calc'!A0",
    "</script><script>window.owned = 1</script>",
    "a\nb\rc\td\0e",
    "\u202eevil\u2066",
    "[bold red]markup[/]:smile:",
    "../../../../etc/passwd",
    "output[" * 50,
    "[!a-z]*?" * 20,
    "(a+)+$" * 10,
    "\N{PILE OF POO}" * 300,
    "x" * 100_000,
    "0",
    "NaN",
)
NUMBERS = (
    *(0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**70),
    *(10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), True, False),
)


def odd(rng: random.Random) -> Any:
    """A value that is JSON, or what Python takes for it."""
    match rng.randrange(6):
        case 0:
            return rng.choice(TEXTS)
        case 1:
            return rng.choice(([], {}, None, [[]], {"": None}))
        case 2:
            return [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
        case 3:
            return {rng.choice(TEXTS): rng.choice(NUMBERS) for _ in range(rng.randrange(4))}
        case 4:
            return f"deep {rng.choice((50, 900, 3000, 100_000))}"
    return rng.choice(NUMBERS)


def to_text(value: Any) -> str:
    """A value as JSON, with lists in lists where `odd` asks for them: `json` cannot write these."""

    def lists(found: re.Match[str]) -> str:
        return "[" * int(found[1]) + "]" * int(found[1])

    return re.sub(r'"deep (\d+)"', lists, json.dumps(value))


def changed(value: Any, rng: random.Random, steps: int = 0) -> Any:
    """A copy of a JSON-able value with one of its parts replaced, dropped or doubled."""
    inside: Callable[[Any], Any] = lambda one: changed(one, rng, steps + 1)  # noqa: E731
    if isinstance(value, dict) and value and rng.random() < 0.8 ** (not steps):
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if action < 0.25:
            return {**value, rng.choice(TEXTS): odd(rng)}
        return {**value, key: inside(value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        action = rng.random()
        if action < 0.2:
            return value[:at] + value[at + 1 :]
        if action < 0.4:
            return value[:at] + value[at:][: rng.randrange(3)] * 2 + value[at:]
        return [*value[:at], inside(value[at]), *value[at + 1 :]]
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 2, 1000))
    return odd(rng)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes with some of them flipped, cut out, doubled or put in."""
    at = rng.randrange(len(content) + 1)
    match rng.randrange(7):
        case 0 | 1:
            changed = bytearray(content)
            for _ in range(rng.choice((1, 1, 1, 4, 30))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 2:
            return content[:at]
        case 3:
            return content[:at] + content[at + rng.randrange(1, 200) :]
        case 4:
            return content[:at] + rng.randbytes(rng.randrange(1, 40)) + content[at:]
        case 5:
            return content[:at] + content[max(0, at - rng.randrange(1, 200)) :]
    mark = b"\xef\xbb\xbf"
    return rng.choice((b"", mark + content, b"\0" * 100, b"PAR1" * 3, b"null", b"[" * 9999))
