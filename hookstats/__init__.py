"""PyTorch's flight recorder: statistics of every activation and gradient, in one line.

`watch` records a running training, `open_run` reads what was recorded, `channel_stats` takes the
statistics of one tensor. `rules` says what goes wrong, `insight` what else follows from statistics,
`sinks` writes them to other tools.
"""

from hookstats import insight, rules, sinks
from hookstats._version import __version__
from hookstats.bins import LinearBins, LogBins
from hookstats.channel_stats import ChannelStats, Histogram, channel_stats
from hookstats.records import StepRecord
from hookstats.run import Run, open_run
from hookstats.watch import Watch, watch

__all__ = [
    "ChannelStats",
    "Histogram",
    "LinearBins",
    "LogBins",
    "Run",
    "StepRecord",
    "Watch",
    "__version__",
    "channel_stats",
    "insight",
    "open_run",
    "rules",
    "sinks",
    "watch",
]
