"""Rules that find what goes wrong in a training run, and say so: step, layer, channel.

`hookstats.watch(..., rules="default")` checks every recorded step by `default_rules()` on the flush
thread; `replay` checks the steps of a stored run. A rule of your own is a subclass of Rule.
"""

from hookstats.rules.channels import DeadChannels, Saturation
from hookstats.rules.history import History
from hookstats.rules.monitor import Monitor, default_rules, replay
from hookstats.rules.rule import Alert, Rule, RuleError, RuleWarning
from hookstats.rules.tensors import Exploding, FP8Risk, NonFinite, SuddenShift, Vanishing

__all__ = [
    "Alert",
    "DeadChannels",
    "Exploding",
    "FP8Risk",
    "History",
    "Monitor",
    "NonFinite",
    "Rule",
    "RuleError",
    "RuleWarning",
    "Saturation",
    "SuddenShift",
    "Vanishing",
    "default_rules",
    "replay",
]
