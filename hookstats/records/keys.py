"""Keys: (name, kind) of a site; how a kind is spelled, and what to say of one that is not there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from functools import cache

Key = tuple[str, str]


def finder(keys: Iterable[Key]) -> Callable[[str, str], Key | None]:
    """A function that says which of `keys` a name and a kind mean, if any.

    A plain kind, such as "output", means the only or the first tensor of several; a last "[0]"
    goes without saying.
    """
    # Gradients come in any order: theirs is that of the values, where those were observed.
    rank = {key: i for i, key in enumerate(keys)}
    first: dict[Key, Key] = {}
    for name, kind in sorted(
        rank, key=lambda key: rank.get((key[0], key[1].removeprefix("grad_")), rank[key])
    ):
        plain = re.split(r"[.\[]", kind, maxsplit=1)[0]
        first.setdefault((name, plain), (name, kind))

    def find(name: str, kind: str) -> Key | None:
        exact = (name, kind)
        return exact if exact in rank else first.get((name, kind.removesuffix("[0]")))

    return find


def hint(keys: Iterable[Key], name: str, kind: str, chosen: Collection[str]) -> str:
    """What to say where `name`, which means the names `chosen`, and `kind` mean none of `keys`."""
    keys = list(keys)
    kinds = list(dict.fromkeys(kind for site, kind in keys if site in chosen))
    if kinds:
        close = difflib.get_close_matches(kind, kinds, n=1)
        alike = f"; did you mean {close[0]!r}?" if close else ""
        return f"{name!r} has the kinds {', '.join(map(repr, kinds))}{alike}"
    names = list(dict.fromkeys(site for site, _ in keys))
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"{len(names)} names, such as {', '.join(map(repr, names[:3]))}"


@cache
def plain_kind(kind: str) -> str:
    """The kind of a tensor without the path of its leaf: "output" of "output[1]"."""
    return kind.split(".")[0].split("[")[0]
