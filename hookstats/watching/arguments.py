"""named(): a call with an argument of another name is answered with the right call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from hookstats.records.keys import did_you_mean

_P = ParamSpec("_P")
_T = TypeVar("_T")

MEANT = {
    **dict.fromkeys(("log_freq", "freq", "interval", "log_every", "every_n_steps"), "every=100"),
    **dict.fromkeys(
        ("dir", "log_dir", "logdir", "save_dir", "run_dir", "directory", "path", "name", "project"),
        'out="runs/a"',
    ),
    **dict.fromkeys(("log", "types", "statistics"), 'kinds=("output", "param_grad")'),
    **dict.fromkeys(("layers", "modules", "names", "filter"), 'include="encoder.*"'),
    **dict.fromkeys(("optimizers", "opt", "optim"), "optimizer=optimizer"),
    **dict.fromkeys(("models", "module", "net"), "model=model"),
    **dict.fromkeys(("histogram", "histograms", "num_bins", "nbins"), "bins=hs.LogBins()"),
    **dict.fromkeys(("callbacks", "loggers", "logger", "writer"), "sinks=[hs.sinks.WandB()]"),
    **dict.fromkeys(("alerts", "checks"), 'rules="default"'),
    **dict.fromkeys(("actions", "action", "notify"), 'rules=["default", action]'),
    **dict.fromkeys(("resume", "continue_run"), "append=True"),
    **dict.fromkeys(("max_size", "limit"), "max_bytes=10 << 30"),
    **dict.fromkeys(("padding_mask", "attention_mask"), 'mask="attention_mask"'),
    **dict.fromkeys(("loss", "criterion"), "no loss; log it at each step: watch.log(loss=loss)"),
}
"""What names in other tools stand for here, as it is written in the call."""


def named(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, with a TypeError in one line for arguments that it does not have."""
    known = signature(function).parameters
    places = [name for name, one in known.items() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if len(args) > len(places):
            raise TypeError(
                f"{function.__name__}() has {' and '.join(places)} by position; expected a name for"
                f" {args[len(places)]!r:.60}, such as {_name_of(args[len(places)])}"
            )
        for name in kwargs.keys() - known.keys():
            expected = MEANT.get(name)
            meant = f"; expected {expected}" if expected else did_you_mean(name, known)
            raise TypeError(f"{function.__name__}() has no argument {name!r}{meant}")
        return function(*args, **kwargs)

    return called


def _name_of(value: object) -> str:
    if isinstance(value, int):
        return f"every={value}"
    return f"out={value!r:.60}" if isinstance(value, str) else "kinds="
