"""The rules that come with hookstats, in their order; as_rules(): what stands for rules."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from hookstats.records.alerts import Alert
from hookstats.rules.actions import OnIncident
from hookstats.rules.beginnings import Initialisation, Untrained
from hookstats.rules.channels import DeadChannels, Dropout
from hookstats.rules.inputs import Inputs, RepeatedInputs
from hookstats.rules.loop import Loop, Mode
from hookstats.rules.loss import Loss
from hookstats.rules.loss_graph import LossGraph
from hookstats.rules.peers import Collapse, Depth, LinearRange
from hookstats.rules.rates import Clipping, LearningRate, Rounding, UpdateSize, WeightDecay
from hookstats.rules.rule import Rule
from hookstats.rules.targets import Accumulation, Logits, Targets
from hookstats.rules.tensors import (
    Exploding,
    Fading,
    NonFinite,
    SuddenShift,
    Underflow,
    Vanishing,
)

_DEFAULT: tuple[type[Rule], ...] = (
    Initialisation,
    Untrained,
    LossGraph,
    Loop,
    Mode,
    WeightDecay,
    LearningRate,
    Clipping,
    Inputs,
    RepeatedInputs,
    UpdateSize,
    Rounding,
    NonFinite,
    Accumulation,
    Logits,
    Targets,
    Dropout,
    Depth,
    LinearRange,
    Collapse,
    Exploding,
    SuddenShift,
    DeadChannels,
    Fading,
    Vanishing,
    Underflow,
    Loss,
)
"""Causes before symptoms: of the findings in a step, the first is taken for the cause of others."""

Rules = str | bool | Rule | type[Rule] | OnIncident | Sequence[str | Rule | type[Rule] | OnIncident]
"""What stands for rules: "default", "all" or True; one or several, each a Rule, its class or its
name, "default" among them; False or () for none. Other callables are actions, see `actions`; where
there is nothing else, the default rules check."""


def default_rules() -> tuple[Rule, ...]:
    """All rules, with their own thresholds; their action is to warn."""
    return tuple(rule() for rule in _DEFAULT)


def advice_of(alert: Alert) -> str:
    """What helps against what an alert says: its own advice, or else its rule's; "" if unknown."""
    of_rule = (known.advice for known in _DEFAULT if known.name == alert.rule)
    return alert.advice or next(of_rule, "")


def as_rules(rules: Any) -> tuple[Rule, ...]:
    """The rules that `rules` stands for, see `Rules`.

    Raises:
        ValueError: it stands for none; the message suggests what was meant.
    """
    if isinstance(rules, bool):
        return default_rules() if rules else ()
    if isinstance(rules, str):
        if rules in ("default", "all"):
            return default_rules()
        return (_named(rules, rules),)
    several = [rules] if isinstance(rules, (Rule, type)) or _is_action(rules) else rules
    if not isinstance(several, Sequence):
        raise ValueError(f'rules = {rules!r}: expected "default", rules, or False for none')
    found: list[Rule] = []
    for rule in several:
        if rule in ("default", "all"):
            found += default_rules()
        elif not _is_action(rule):
            found.append(_one(rule, rules))
    return default_rules() if several and all(map(_is_action, several)) else tuple(found)


def actions_of(rules: Any) -> tuple[OnIncident, ...]:
    """The actions among `rules`, which `as_rules` has taken."""
    several = rules if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules]
    return tuple(filter(_is_action, several))


def _is_action(one: object) -> bool:
    return callable(one) and not isinstance(one, (Rule, type))


def _one(rule: Any, rules: Any) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, type) and issubclass(rule, Rule):
        return rule()
    if isinstance(rule, str):
        return _named(rule, rules)
    raise ValueError(f'rules = {rules!r}: expected "default", or rules such as NonFinite()')


def _named(name: str, rules: Any) -> Rule:
    """A rule by its name in alerts or by that of its class."""
    known = {"default": None} | {r.name: r for r in _DEFAULT} | {r.__name__: r for r in _DEFAULT}
    found = known.get(name)
    if found is not None:
        return found()
    lower = {known_name.lower(): known_name for known_name in known}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    if name.lower() in ("nan", "inf", "nonfinite"):
        close = ["non-finite"]
    meant = f"; did you mean {lower[close[0]]!r}?" if close else ""
    names = ", ".join(rule.name for rule in _DEFAULT)
    raise ValueError(f'rules = {rules!r}: expected "default", or some of {names}{meant}')
