"""The statistics that follow from a state: one table of all, each defined once.

`Statistics` has them as properties: ChannelStats of tensors, the series of a run of arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookstats.stats.state import MOMENTS, TALLIES

Array = NDArray[Any]
Columns = Callable[[str], Array]
"""A state: the columns of `stats.state` by name, arrays of one shape."""


class Statistic(NamedTuple):
    """One statistic of a state."""

    name: str
    of: Callable[[Columns], Array]
    scale: Literal["count", "log", "signed"]
    """How the statistic is best drawn: an integer, a magnitude, a number of either sign."""
    label: str
    """The statistic in words, for people."""
    column: str | None = None
    """The name of the column if the statistic is one column of the state; otherwise None."""


def columns_of(moments: Array, tallies: Array) -> Columns:
    """The columns of the states in the last dimension of `moments` and `tallies`; views."""

    def column(name: str) -> Array:
        if name in TALLIES:
            return tallies[..., TALLIES.index(name)]
        return moments[..., MOMENTS.index(name)]

    return column


def mean(columns: Columns) -> Array:
    """The arithmetic mean; NaN where there are no values."""
    some, values = columns("count") > 0, columns("mean")
    out: Array = values if some.all() else np.where(some, values, np.nan)
    return out


def variance(columns: Columns, correction: float = 0.0) -> Array:
    """The sum of squared deviations / (count - correction); NaN where that is 0 or less."""
    freedom = columns("count") - correction
    out = np.full(freedom.shape, np.nan)
    np.divide(columns("m2"), freedom, out=out, where=freedom > 0)
    return out


def std(columns: Columns) -> Array:
    """The population standard deviation."""
    return np.sqrt(variance(columns))


def amax(columns: Columns) -> Array:
    """The greatest magnitude; -inf where there are no values."""
    return np.maximum(-columns("min"), columns("max"))


def l2_norm(columns: Columns) -> Array:
    """The square root of the sum of squares, scaled so that squares neither overflow nor vanish."""
    count = np.sqrt(columns("count"))
    norm: Array = np.hypot(np.sqrt(columns("m2")), count * columns("mean"))
    return norm


def rms(columns: Columns) -> Array:
    """The square root of the mean of squares; NaN where there are no values."""
    return np.hypot(mean(columns), std(columns))


def dead(columns: Columns) -> Array:
    """Whether there are finite values and all of them are zero: bool.

    This is what "dead" means everywhere: in alerts, tables, figures and reports. A dead channel of
    an output carries no signal; a dead channel of a gradient receives none. NaN and infinities do
    not count here: they are counted separately. A channel without finite values is not dead, and
    neither is a channel that is stuck at another value.
    """
    count = columns("count")
    out: Array = (count > 0) & (columns("zero") == count)
    return out


def _column(name: str) -> Callable[[Columns], Array]:
    return lambda columns: columns(name)


STATISTICS = {
    one.name: one
    for one in (
        Statistic("count", _column("count"), "count", "finite values", "count"),
        Statistic("nan", _column("nan"), "count", "NaN", "nan"),
        Statistic("posinf", _column("posinf"), "count", "+infinity", "posinf"),
        Statistic("neginf", _column("neginf"), "count", "-infinity", "neginf"),
        Statistic("zero", _column("zero"), "count", "zeros", "zero"),
        Statistic("mean", mean, "signed", "mean", "mean"),
        Statistic("var", variance, "log", "variance", "m2"),
        Statistic("std", std, "log", "standard deviation"),
        Statistic("min", _column("min"), "signed", "least value", "min"),
        Statistic("max", _column("max"), "signed", "greatest value", "max"),
        Statistic("l1_norm", _column("l1"), "log", "l1 norm", "l1"),
        Statistic("l2_norm", l2_norm, "log", "l2 norm"),
        Statistic("rms", rms, "log", "rms"),
        Statistic("amax", amax, "log", "greatest magnitude"),
    )
}
"""Every statistic by its name, in the order in which tables and files list them."""


def statistic(name: str, columns: Columns) -> Array:
    """The statistic of this name, without warnings where it has no value."""
    with np.errstate(all="ignore"):
        return STATISTICS[name].of(columns)


Counts = TypeVar("Counts")
Values = TypeVar("Values")
_T = TypeVar("_T")


class _Derived(property, Generic[_T]):
    """A property of `Statistics`: the statistic of the same name."""

    def __init__(self, doc: str) -> None:
        super().__init__(lambda state: state._of(self._name))
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:

        def __get__(self, state: Any, owner: Any = None) -> _T: ...  # type: ignore[override]


class Statistics(ABC, Generic[Counts, Values]):
    """The statistics of a state as properties: counts are int64, all others float64.

    All but `nan`, `posinf` and `neginf` are over the finite values. Without finite values, mean,
    var, std and rms are NaN, min is +inf, max and amax are -inf, the norms are 0.
    """

    @abstractmethod
    def _of(self, name: str) -> Any:
        """The statistic `name`."""

    count = _Derived[Counts]("int64: finite values.")
    nan = _Derived[Counts]("int64: NaNs.")
    posinf = _Derived[Counts]("int64: positive infinities.")
    neginf = _Derived[Counts]("int64: negative infinities.")
    zero = _Derived[Counts]("int64: zeros of either sign.")
    mean = _Derived[Values]("float64: arithmetic mean.")
    var = _Derived[Values]("float64: population variance.")
    std = _Derived[Values]("float64: population standard deviation.")
    min = _Derived[Values]("float64: least value.")
    max = _Derived[Values]("float64: greatest value.")
    amax = _Derived[Values]("float64: greatest magnitude.")
    l1_norm = _Derived[Values]("float64: sum of magnitudes.")
    l2_norm = _Derived[Values]("float64: square root of the sum of squares.")
    rms = _Derived[Values]("float64: square root of the mean of squares.")
