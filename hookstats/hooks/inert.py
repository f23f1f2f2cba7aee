"""Hook: the base of all hooks, and what becomes of hooks in a copy of the model."""

from __future__ import annotations


class Inert:
    """Takes a hook's place in a copy of the model, and does nothing."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass


class Hook:
    """A hook that belongs to one model: a copy or a pickle of the model has an `Inert` instead."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return Inert, ()
