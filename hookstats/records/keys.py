"""Keys: the (name, kind) of a site; the grammar of kinds, labels of sites, the matching of keys.

A kind is a phase and a colon (nothing for training), a plain kind, and the path of a leaf:
"output", "grad_output.logits", "fake:output[1]".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from hookstats.stats.printable import printable

Key = tuple[str, str]

MODULE_KINDS = ("input", "grad_input", "output", "grad_output")
"""The plain kinds of tensors of a module's calls."""

PARAMETER_KINDS = ("param", "param_grad", "update", "optimizer_state", "checksum")
"""The plain kinds of tensors of a parameter."""

CHOICES = "choices"
"""The plain kind of the share of each value that a module chooses, such as an expert or a code."""

_SUFFIX = re.compile(r"(@(\d+|\.\.\.))?(\[(\d+ch|whole)\])?\Z")  # of a call, and of a width
_PHASE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VALUES = {"grad_input": "input", "grad_output": "output", "param_grad": "param"}
_GRADIENTS = {values: gradient for gradient, values in _VALUES.items()}


class Kind(NamedTuple):
    """Which tensor of a module or parameter: a plain kind, the path of a leaf, and the phase."""

    plain: str
    """One of `MODULE_KINDS` or `PARAMETER_KINDS`."""
    path: str | None
    """The path as in `hooks.leaves`, "" for the first leaf; None if the kind has no path."""
    phase: str | None = None
    """In which phase the module was called; None in training."""

    @property
    def base(self) -> str:
        """The kind without the path of the leaf."""
        return in_phase(self.phase, self.plain)

    @property
    def is_gradient(self) -> bool:
        return self.plain in _VALUES

    @property
    def values(self) -> str:
        """The kind of the values that this is the gradient of; the kind itself if it has values."""
        return in_phase(self.phase, _VALUES.get(self.plain, self.plain)) + (self.path or "")

    @property
    def gradient(self) -> str:
        """The kind of the gradient of these values; the kind itself if it is a gradient."""
        return in_phase(self.phase, _GRADIENTS.get(self.plain, self.plain)) + (self.path or "")


@cache
def parse_kind(kind: str) -> Kind:
    """The parts of a kind, such as "output", "output[1]", "fake:grad_output.logits"."""
    phase, kind = split_phase(kind)
    plain = re.split(r"[.\[]", kind, maxsplit=1)[0]
    path = kind.removeprefix(plain)
    return Kind(plain, leaf_path(path) if path else None, phase)


def in_phase(phase: str | None, kind: str) -> str:
    """`kind` in a phase; None or "": in training."""
    return f"{phase}:{kind}" if phase else kind


def split_phase(kind: str) -> tuple[str | None, str]:
    """The phase of a kind, None in training, and the kind without it."""
    phase, colon, rest = kind.partition(":")
    return (phase, rest) if colon and _PHASE.fullmatch(phase) else (None, kind)


def check_phase(name: object) -> str:
    """`name`, if it can be that of a phase.

    Raises:
        ValueError: it has other characters than a kind's phase can have.
    """
    if not (isinstance(name, str) and _PHASE.fullmatch(name)):
        raise ValueError(
            f"phase = {name!r}: expected letters, digits, '_' and '-', a letter or '_' first"
        )
    return name


def leaf_path(path: str) -> str:
    """The path of a leaf as keys have it: the path of the first leaf of a sequence is left out.

    So "[0]" and "[0][0]" become "", and all other paths stay as they are.
    """
    return path if path.replace("[0]", "") else ""


def plain_kind(kind: str) -> str:
    """The kind of a tensor without phase and path: "output" of "fake:output[1]"."""
    return parse_kind(kind).plain


_T = TypeVar("_T", bound=Hashable)


class InOrder(Generic[_T]):
    """What several steps or ranks have, in one order of execution."""

    def __init__(self, several: Iterable[Iterable[_T]] = ()) -> None:
        """several: what each has, in its order."""
        self._items: list[_T] = []
        self._known: set[_T] = set()
        for one in several:
            self.add(one)

    def add(self, one: Iterable[_T]) -> None:
        """Add what is new in a step or rank: each item right behind the one before it there, or
        before the first one that is known; last where none is."""
        items, known, one = self._items, self._known, list(one)
        first = next((item for item in one if item in known), None)
        place = len(items) if first is None else items.index(first)
        before: _T | None = None
        for item in one:
            if item in known:
                before = item
                continue
            if before is not None:
                place, before = items.index(before) + 1, None
            items.insert(place, item)
            known.add(item)
            place += 1

    def __iter__(self) -> Iterator[_T]:
        return iter(self._items)


def label(name: str) -> str:
    """The name of a site for people: `printable`; the name of the root module is "(root)", before
    the suffix of a width or call if there is one."""
    return printable(f"(root){name}" if _SUFFIX.match(name) else name)


def finder(keys: Iterable[Key]) -> Callable[[str, str], Key | None]:
    """A function that returns which of `keys` a name and a kind mean, if any.

    A plain kind, such as "output" or "output[0]", means the only or the first tensor of several,
    in training; "fake:output" the same in the phase "fake".
    """
    # Gradients come in any order: theirs is that of the values, where those were observed.
    rank = {key: i for i, key in enumerate(keys)}
    values = {
        (name, parse_kind(kind).values): i
        for (name, kind), i in reversed(rank.items())
        if not parse_kind(kind).is_gradient
    }
    first: dict[Key, Key] = {}
    for name, kind in sorted(
        rank, key=lambda key: values.get((key[0], parse_kind(key[1]).values), rank[key])
    ):
        first.setdefault((name, parse_kind(kind).base), (name, kind))

    def find(name: str, kind: str) -> Key | None:
        if (name, kind) in rank:
            return name, kind
        meant = parse_kind(kind)
        if not meant.path:
            return first.get((name, meant.base))
        exact = (name, meant.base + meant.path)
        return exact if exact in rank else None

    return find


def hint(keys: Iterable[Key], name: str, kind: str, chosen: Collection[str]) -> str:
    """The hint of an error: `name`, which means the names `chosen`, and `kind` match no key."""
    keys = list(keys)
    kinds = list(dict.fromkeys(kind for site, kind in keys if site in chosen))
    if kinds:
        meant = did_you_mean(kind, kinds, 1)
        return f"{name!r} has the kinds {', '.join(map(repr, kinds))}{meant}"
    names = list(dict.fromkeys(site for site, _ in keys))
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"{len(names)} names, such as {', '.join(map(repr, names[:3]))}"


def did_you_mean(name: str, names: Iterable[str], most: int = 3) -> str:
    """The end of a message, "; did you mean 'a' or 'b'?"; "" if none of `names` is similar."""
    close = difflib.get_close_matches(name, names, n=most)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
