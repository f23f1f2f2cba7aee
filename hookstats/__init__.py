"""PyTorch's flight recorder: statistics of every activation and gradient, in one line.

`watch` records a running training, `open_run` reads what was recorded, `channel_stats` takes the
statistics of one tensor. `capture` keeps tensors themselves, `pictures` shows them, `edit`
changes them in flight, `trace` says what ran. `rules` says what goes wrong, `insight` what else
follows from statistics, `sinks` writes them to other tools.
"""

from hookstats import insight, pictures, rules, sinks
from hookstats._version import __version__
from hookstats.bins import LinearBins, LogBins
from hookstats.channel_stats import ChannelStats, Histogram, channel_stats
from hookstats.records import StepRecord
from hookstats.run import Run, open_run
from hookstats.tensors.calls import Call, TracedTensor
from hookstats.tensors.capture import Capture, TensorCapture, capture
from hookstats.tensors.captured import CapturedCall
from hookstats.tensors.edit import Edit, edit
from hookstats.tensors.editor import EditError
from hookstats.tensors.trace import Trace, trace
from hookstats.watch import Watch, watch

__all__ = [
    "Call",
    "Capture",
    "CapturedCall",
    "ChannelStats",
    "Edit",
    "EditError",
    "Histogram",
    "LinearBins",
    "LogBins",
    "Run",
    "StepRecord",
    "TensorCapture",
    "Trace",
    "TracedTensor",
    "Watch",
    "__version__",
    "capture",
    "channel_stats",
    "edit",
    "insight",
    "open_run",
    "pictures",
    "rules",
    "sinks",
    "trace",
    "watch",
]
