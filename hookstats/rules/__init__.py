"""Rules that find what goes wrong in a training run, and say so: step, layer, channel.

`hookstats.watch(..., rules="default")` checks every recorded step by `default_rules()` on the flush
thread; `replay` checks the steps of a stored run. A rule of your own is a subclass of Rule.
"""

from hookstats.records.alerts import Alert, Incident
from hookstats.rules.beginnings import Initialisation, Untrained
from hookstats.rules.channels import DeadChannels, Dropout
from hookstats.rules.defaults import Rules, advice_of, as_rules, default_rules
from hookstats.rules.history import History
from hookstats.rules.inputs import Inputs, RepeatedInputs
from hookstats.rules.loop import Loop, Mode
from hookstats.rules.loss import Loss
from hookstats.rules.loss_graph import LossGraph
from hookstats.rules.monitor import Monitor
from hookstats.rules.peers import Collapse, Depth, LinearRange
from hookstats.rules.rates import Clipping, LearningRate, Rounding, UpdateSize, WeightDecay
from hookstats.rules.replaying import replay
from hookstats.rules.rule import Rule, RuleError, RuleWarning
from hookstats.rules.setup import Setup
from hookstats.rules.targets import Accumulation, Logits, Targets
from hookstats.rules.tensors import (
    Exploding,
    Fading,
    NonFinite,
    SuddenShift,
    Underflow,
    Vanishing,
)

__all__ = [
    "Accumulation",
    "Alert",
    "Clipping",
    "Collapse",
    "DeadChannels",
    "Depth",
    "Dropout",
    "Exploding",
    "Fading",
    "History",
    "Incident",
    "Initialisation",
    "Inputs",
    "LearningRate",
    "LinearRange",
    "Logits",
    "Loop",
    "Loss",
    "LossGraph",
    "Mode",
    "Monitor",
    "NonFinite",
    "RepeatedInputs",
    "Rounding",
    "Rule",
    "RuleError",
    "RuleWarning",
    "Rules",
    "Setup",
    "SuddenShift",
    "Targets",
    "Underflow",
    "Untrained",
    "UpdateSize",
    "Vanishing",
    "WeightDecay",
    "advice_of",
    "as_rules",
    "default_rules",
    "replay",
]
