"""PyTorch's flight recorder: statistics of every activation and gradient, in one line.

`watch` records training as it runs, `open_run` reads a recorded run, `compare` finds where two runs
differ, `check` examines a model before it is trained, `channel_stats` computes the statistics of
one tensor. `capture` keeps the tensors themselves, `pictures` draws them, `edit` changes them in
flight, `trace` lists what ran. `rules` find what goes wrong, `insight` computes more from the
statistics, `sinks` send records to other tools.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookstats._version import __version__

if TYPE_CHECKING:
    from hookstats import insight, rules, sinks
    from hookstats.hooks.attention import attention
    from hookstats.hooks.coverage import Coverage
    from hookstats.hooks.observe import observe
    from hookstats.insight.comparison import RunComparison, compare
    from hookstats.kernels.of_tensor import channel_stats
    from hookstats.preflight.check import check
    from hookstats.preflight.finding import Finding
    from hookstats.records.record import StepRecord
    from hookstats.rules import actions
    from hookstats.runs.run import Run, open_run
    from hookstats.runs.series import Series, SiteSeries
    from hookstats.stats.bins import LinearBins, LogBins
    from hookstats.stats.channel_stats import ChannelStats
    from hookstats.stats.histogram import Histogram
    from hookstats.tensors import pictures
    from hookstats.tensors.calls import Call, TracedTensor
    from hookstats.tensors.capture import capture
    from hookstats.tensors.capture_handles import Capture, TensorCapture
    from hookstats.tensors.captured import CapturedCall
    from hookstats.tensors.edit import Edit, edit
    from hookstats.tensors.editor import EditError
    from hookstats.tensors.trace import Trace, trace
    from hookstats.watching.config import load_config
    from hookstats.watching.handle import Watch
    from hookstats.watching.reduce import Reduce
    from hookstats.watching.watch import watch

__all__ = [
    "Call",
    "Capture",
    "CapturedCall",
    "ChannelStats",
    "Coverage",
    "Edit",
    "EditError",
    "Finding",
    "Histogram",
    "LinearBins",
    "LogBins",
    "Reduce",
    "Run",
    "RunComparison",
    "Series",
    "SiteSeries",
    "StepRecord",
    "TensorCapture",
    "Trace",
    "TracedTensor",
    "Watch",
    "__version__",
    "actions",
    "attention",
    "capture",
    "channel_stats",
    "check",
    "compare",
    "edit",
    "insight",
    "load_config",
    "observe",
    "open_run",
    "pictures",
    "rules",
    "sinks",
    "trace",
    "watch",
]

# So that records and runs, which are below `show`, need not import it.
import_module("hookstats.records.display").on_first_use(
    lambda: import_module("hookstats.show.bindings")
)

# Each module is imported when one of its names is first used: torch takes a second, and reading a
# run needs no kernels.
_HOMES = {
    "hooks.coverage": ("Coverage",),
    "hooks.attention": ("attention",),
    "hooks.observe": ("observe",),
    "insight.comparison": ("RunComparison", "compare"),
    "kernels.of_tensor": ("channel_stats",),
    "preflight.check": ("check",),
    "preflight.finding": ("Finding",),
    "records.record": ("StepRecord",),
    "runs.run": ("Run", "open_run"),
    "runs.series": ("Series", "SiteSeries"),
    "stats.bins": ("LinearBins", "LogBins"),
    "stats.channel_stats": ("ChannelStats",),
    "stats.histogram": ("Histogram",),
    "tensors.calls": ("Call", "TracedTensor"),
    "tensors.capture": ("capture",),
    "tensors.capture_handles": ("Capture", "TensorCapture"),
    "tensors.captured": ("CapturedCall",),
    "tensors.edit": ("Edit", "edit"),
    "tensors.editor": ("EditError",),
    "tensors.trace": ("Trace", "trace"),
    "watching.config": ("load_config",),
    "watching.handle": ("Watch",),
    "watching.reduce": ("Reduce",),
    "watching.watch": ("watch",),
}
_MODULES = {
    "actions": "rules.actions",
    "insight": "insight",
    "pictures": "tensors.pictures",
    "rules": "rules",
    "sinks": "sinks",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(f"hookstats.{_MODULES[name]}")
    elif name in _HOME:
        value = getattr(import_module(f"hookstats.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'hookstats' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
