"""Hook: what all hooks are, and what becomes of them in a copy of the model."""

from __future__ import annotations


class Inert:
    """What a copy of a watched model has in a hook's place: it does nothing."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


class Hook:
    """A hook that belongs to one model: copied or pickled with it, it becomes inert."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()
