"""Rules about what a training run begins with: initialisation, parameters that nothing trains."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hookstats.records.alerts import Alert, Severity
from hookstats.records.keys import Key
from hookstats.records.loads import LOAD
from hookstats.records.record import StepRecord
from hookstats.rules.history import History
from hookstats.rules.rule import Rule, at_least
from hookstats.rules.setup import Setup, Weight

_MATRICES = re.compile(r"Linear|Conv|RNN|LSTM|GRU|Bilinear|MultiheadAttention|Attention\Z|Dense\Z")
"""The types of modules whose weights multiply what enters; other parameters may begin as they like:
norms, gains of branches, tokens, positions."""
_WEIGHT = re.compile(r"weight(_v|_mu|_orig|_[ih]h_l\d+(_reverse)?)?\Z")
_NUMBER = re.compile(r"\d+")

Place = tuple[str, str]
"""What names share that differ in one number: what is before it and after it."""


def role(name: str) -> str:
    """A name without its numbers, which layers that do the same at other depths share.

    The number at the end of a word is a number, too: "conv1" and "conv2" share "conv#".
    """
    return _NUMBER.sub("#", name)


def numbered(name: str) -> Iterator[tuple[str, Place]]:
    """Of each number in a name: the block that ends with it, and the place in such blocks."""
    for number in _NUMBER.finditer(name):
        yield name[: number.end()], (name[: number.start()], name[number.end() :])


@dataclass(frozen=True, kw_only=True)
class Initialisation(Rule):
    """A weight begins too large, too small, or unlike the weights of its kind.

    The gain of a weight is its rms times the square root of its inputs: how much larger its outputs
    are than independent inputs. It is 1 as Glorot and Bengio (2010) have it, 1.4 for ReLU (He et
    al., 2015), 0.58 by PyTorch's default, down to 0.06 in narrow GPTs. Some initialisations count
    outputs instead of inputs. There is an alert if the gain is above `most`, or below `least` while
    the rms is below `rms`, by inputs and outputs alike; if it is `octaves` (factors of two) away
    from that of each other weight in its role (the same name but for numbers, "h.#.c_fc"), or from
    most weights of its type of module; if it is zero, unlike most of its role: residual branches
    that begin with zeros all do; if rows are 8 times larger or smaller than the median row, as
    those of a head; if all weights are zero; if all values are equal, so that all its units learn
    the same; and if the rms of an embedding is above `embedding`. The gains of norms are compared
    with each other alone. The rule looks once, at the first step, and not at frozen weights, which
    are as somebody wanted them, nor at weights that were trained before, which norms with other
    values than 0 and 1 show: there, some filters are often dead, and some are large. Heads, whose
    outputs no later weight takes, may begin small or with equal values, weights on a residual
    branch, behind which what enters the next weight is large again, may begin small, and weights
    may begin with zeros in each copy of a block beside others that do not. The alert's value is the
    gain.
    """

    name: ClassVar[str] = "initialisation"
    advice: ClassVar[str] = "initialise it like its peers"

    most: float = at_least(0, 6.0)
    least: float = at_least(0, 1 / 32)
    rms: float = at_least(0, 0.003)
    octaves: float = at_least(0, 3.5)
    embedding: float = at_least(0, 4.0)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        setup = history.setup
        if history.pushed > 1 or _was_trained(setup):
            return
        matrices = [w for w in _matrices(setup) if w.trained]
        gains = {w.name: _gain(w, setup) for w in matrices}
        heads = heads_of(setup)
        if len(matrices) > 1 and not any(gains.values()):
            says = (
                f"begins with zeros, and so do all {len(matrices)} weights: no gradient passes them"
            )
            helps = "initialise weights at random"
            key = (matrices[0].name, "param")
            yield self.about(
                key, record.step, record.rank, says, 0.0, advice=helps, severity="error"
            )
            return
        by_role, by_type = _Peers(gains, role), _Peers(gains, setup.type_of)
        zeros = _zero_in_each_copy(gains)
        small = {w.name for w in matrices if self._is_small(w, gains[w.name], setup)}
        small -= _on_branches(small, gains, heads, history, record)
        for weight in matrices:
            gain = gains[weight.name]
            is_small_head = 0 < gain < 1 and weight.name in heads
            is_too_small = weight.name in small and not is_small_head
            is_symmetric = bool(weight.constant and gain and weight.name not in heads)
            says = self._says(weight, gain, _other_gain(weight, setup), is_symmetric, is_too_small)
            if not says and not is_small_head and weight.name not in zeros:
                says = self._unlike(weight.name, gain, by_role, by_type)
            if says:
                yield self._alert(record, weight, says, gain)
        for weight in setup.weights:
            is_table = weight.trained and len(weight.shape) > 1
            is_embedding = is_table and setup.type_of(weight.name).startswith("Embedding")
            if is_embedding and weight.rms is not None and weight.rms > self.embedding:
                says = f"begins with an rms of {weight.rms:.3g}: about 1 or less is usual"
                yield self._alert(record, weight, says, weight.rms)
        yield from self._norms(record, setup)

    def _alert(self, record: StepRecord, weight: Weight, says: str, value: float) -> Alert:
        return self.about((weight.name, "param"), record.step, record.rank, says, value)

    def _is_small(self, weight: Weight, gain: float, setup: Setup) -> bool:
        larger = max(gain, _other_gain(weight, setup))
        return 0 < larger < self.least and (weight.rms or 0.0) < self.rms

    def _says(
        self, weight: Weight, gain: float, other: float, is_symmetric: bool, is_too_small: bool
    ) -> str:
        """What is wrong with a weight by itself; "" for nothing. other: its gain by outputs."""
        if min(gain, other) > self.most:
            return (
                f"begins with a gain of {gain:.3g}: outputs are that many times larger than inputs"
            )
        if is_symmetric and min(weight.shape[:2]) > 1:
            return "begins with all values equal: its units get equal gradients, and learn the same"
        if weight.rows is not None:
            many, first, ratio = weight.rows
            are = f"up to {ratio:.3g} times as large as the others" if ratio else "all zero"
            return f"begins with {many} rows that are {are}, the first is row {first}"
        if is_too_small:
            return (
                f"begins with a gain of {gain:.3g}: outputs are that many times as large as inputs"
            )
        return ""

    def _unlike(self, weight: str, gain: float, by_role: _Peers, by_type: _Peers) -> str:
        same_role = by_role.of(weight)
        if not gain:
            zeros = by_role.zeros(weight)
            return "begins with zeros, unlike its peers" if len(same_role) >= 2 * zeros else ""
        if len(same_role) >= 2:
            away = np.abs(np.log2(gain / same_role))
            if away.min() >= self.octaves:
                peer = same_role[away.argmin()]
                return f"begins with a gain of {gain:.3g}, the nearest of its peers with {peer:.3g}"
        typed = by_type.of(weight)
        if len(typed) >= 2 and np.abs(np.log2(gain / typed)).min() >= self.octaves + 1.5:
            usual, kind = np.median(typed), by_type.common(weight)
            return f"begins with a gain of {gain:.3g}, other weights of {kind} with {usual:.3g}"
        return ""

    def _norms(self, record: StepRecord, setup: Setup) -> Iterator[Alert]:
        """The gains of norms: zeros are left out, with which some residual branches begin."""
        gains = {w.name: w.rms for w in setup.weights if w.rms and "Norm" in setup.type_of(w.name)}
        by_role = _Peers(gains, role)
        for weight in setup.weights:
            rms = gains.get(weight.name)
            if rms is None or weight.name.endswith(".bias"):
                continue
            peers = by_role.of(weight.name)
            away = np.abs(np.log2(rms / peers))
            if len(peers) >= 2 and away.min() >= self.octaves:
                peer = peers[away.argmin()]
                says = f"begins at {rms:.3g}, the nearest of its peers at {peer:.3g}"
                yield self._alert(record, weight, says, rms)


def _shape(weight: Weight, setup: Setup) -> tuple[int, ...]:
    """Outputs, inputs, and the size of a kernel; Conv1D of transformers is a transposed Linear."""
    return weight.shape[::-1] if setup.type_of(weight.name) == "Conv1D" else weight.shape


def _gain(weight: Weight, setup: Setup) -> float:
    return (weight.rms or 0.0) * math.sqrt(math.prod(_shape(weight, setup)[1:]))


def _other_gain(weight: Weight, setup: Setup) -> float:
    """The gain by the number of outputs, as some initialisations count it."""
    outputs, _, *kernel = _shape(weight, setup)
    return (weight.rms or 0.0) * math.sqrt(outputs * math.prod(kernel))


def _matrices(setup: Setup) -> list[Weight]:
    """The weights that multiply what enters, whose values are known."""
    known = (w for w in setup.weights if w.rms is not None and len(w.shape) > 1)
    return [w for w in known if _MATRICES.search(setup.type_of(w.name)) and _WEIGHT.search(w.name)]


def _zero_in_each_copy(gains: Mapping[str, float]) -> set[str]:
    """The weights that are zero in each copy of a block that has other weights, too: somebody wants
    them so, as the last ones of networks that begin as the identity."""
    others = {block for name, gain in gains.items() if gain for block, _ in numbered(name)}
    found: set[str] = set()
    for (_, rest), blocks in _copies(gains).items():
        weights = {block + rest for block in blocks}
        if len(blocks) > 1 and not any(map(gains.get, weights)) and others.issuperset(blocks):
            found |= weights
    return found


def _copies(names: Iterable[str]) -> dict[Place, list[str]]:
    """The blocks that have something at the same place, in the order of `names`."""
    found: defaultdict[Place, list[str]] = defaultdict(list)
    for name in names:
        for block, place in numbered(name):
            found[place].append(block)
    return found


def _on_branches(
    small: set[str],
    gains: Mapping[str, float],
    heads: set[str],
    history: History,
    record: StepRecord,
) -> set[str]:
    """The small weights behind which what enters the next weight is large again: it came by another
    way, past the residual branch that they are on. A norm would make it large, too, and what small
    heads give enters no weight."""
    deviations = history.deviations(record)
    by_module = {name.rpartition(".")[0]: name for name in gains}
    found = set()
    entering, follows = 0.0, False  # of the next weight: what enters it, whether a way leads past
    for site in np.flatnonzero(history.sites.of_kind("output"))[::-1].tolist():
        if "Norm" in history.type_of(site):
            entering, follows = 0.0, False
        weight = by_module.get(history.sites.sites[site].name)
        if weight is None or weight in small & heads:
            continue
        gives = float(deviations[site])
        follows = weight in small and (follows or entering > 8 * gives)
        if follows:
            found.add(weight)
        entering = gives / gains[weight] if gains[weight] else 0.0
    return found


def heads_of(setup: Setup) -> set[str]:
    """The weights whose outputs no later weight can take: all, some of them, or positions of
    each."""
    heads: set[str] = set()
    inputs: set[int] = set()  # of the later weights
    for weight in reversed(_matrices(setup)):
        outputs, inner, *kernel = _shape(weight, setup)
        if not any(
            n == outputs or (n > 1 and outputs % n == 0) or (kernel and n % outputs == 0)
            for n in inputs
        ):
            heads.add(weight.name)
        inputs.add(inner)
    return heads


class _Peers:
    """The gains of weights that have something in common, such as their role."""

    def __init__(self, gains: Mapping[str, float], common: Callable[[str], str]) -> None:
        """gains: by the weight's name; a gain of 0 is left out, and is no peer.

        common: what a weight has in common with its peers, by its name.
        """
        self.common = common
        groups: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._zeros: defaultdict[str, int] = defaultdict(int)
        for name, gain in gains.items():
            self._zeros[common(name)] += not gain
            if gain:
                groups[common(name)][name] = gain
        self._gains = {what: np.array(list(group.values())) for what, group in groups.items()}
        self._places = {
            name: (what, place)
            for what, group in groups.items()
            for place, name in enumerate(group)
        }

    def zeros(self, name: str) -> int:
        """How many weights of a weight's group, with itself, are zero."""
        return self._zeros[self.common(name)]

    def of(self, name: str) -> NDArray[np.float64]:
        """The gains of a weight's peers, without its own."""
        if name in self._places:
            what, place = self._places[name]
            return np.delete(self._gains[what], place)
        return self._gains.get(self.common(name), np.zeros(0))


def _was_trained(setup: Setup) -> bool:
    """Whether training has been there before: norms begin with equal gains and equal biases."""
    norms = {w.name: w for w in setup.weights if w.rms is not None and _is_of_norm(w, setup)}
    biases = [w for name, w in norms.items() if name.endswith(".bias")]
    told = biases or list(norms.values())
    return 2 * sum(not w.constant for w in told) > len(told)


def _is_of_norm(weight: Weight, setup: Setup) -> bool:
    return math.prod(weight.shape) > 1 and "Norm" in setup.type_of(weight.name)


def _place(name: str) -> str:
    """What a name shares with those of the same module in other members of a list."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


@dataclass(frozen=True, kw_only=True)
class Untrained(Rule):
    """Parameters that nothing trains: in no optimizer, frozen among trained ones, or without
    gradients.

    A parameter that requires a gradient and is in no optimizer gives a warning if a gradient
    reached the output of its module in the first `steps` steps: none reaches a teacher or the
    network that targets come from. It gives a note if this is so of most parameters, and an error
    if it is so of all, while the optimizer trains another number of values: it is that of another
    model. A frozen parameter gives a warning if parameters in its role (the same name but for
    numbers) are trained both before and after it, else a note, as in fine-tuning. A parameter of an
    optimizer that had no gradient in the first `steps` steps, though others had one and its module
    was called, gives a warning; a note, if it is in the last of several blocks alone. So does one
    that had a gradient in each step before, and none in the last `gone`, while its module is
    called; a gradient that came and could not be read is none of these. There is one alert per
    reason, about the first parameter. The alert's value is their number.
    """

    name: ClassVar[str] = "untrained"
    advice: ClassVar[str] = (
        "give the parameter to the optimizer, and all optimizers to watch; remove what detaches or "
        "freezes it"
    )

    steps: int = at_least(1, 5)
    gone: int = at_least(1, 3)
    idle: int = at_least(1, 50)

    def check(self, record: StepRecord, history: History) -> Iterator[Alert]:
        setup = history.setup
        if history.pushed == 1:
            yield from self._frozen(record, setup)
        if history.pushed == self.steps:
            yield from self._left_out(record, setup, history)
            yield from self._without_gradient(record, setup, history)
        if history.pushed == self.idle:
            yield from self._never_run(record, setup, history)
        if gone := self._gone(record, history, self.gone):
            says = f"is missing{_more(gone)}: it came in each step before"
            since = [*history.past_steps, record.step][-self.gone]
            yield self._about((gone[0], "param_grad"), record, says, gone, since=since)

    def suspects(self, record: StepRecord, history: History) -> bool:
        return bool(self._gone(record, history, 1))

    def _gone(self, record: StepRecord, history: History, steps: int) -> list[str]:
        """The parameters that had a gradient in each step before, and none in the last `steps`,
        while others have one and their module is called."""
        gone = [
            name
            for name in history.gone("param_grad", steps, after=16)
            if (name.rpartition(".")[0], "output") in history.sites.at
            and name not in history.unread
        ]
        return gone if gone and any(kind == "param_grad" for _, kind in record) else []

    def _about(
        self,
        key: Key,
        record: StepRecord,
        says: str,
        names: Sequence[str],
        severity: Severity = "warning",
        since: int | None = None,
    ) -> Alert:
        return self.about(
            key, record.step, record.rank, says, len(names), severity=severity, since=since
        )

    def _never_run(self, record: StepRecord, setup: Setup, history: History) -> Iterator[Alert]:
        """Modules beside others that run, as experts that no router chooses."""
        ran = {name for name in setup.modules if history.knows((name, "output"))}
        roles = {_place(name): name for name in ran}
        weights = {weight.name.rpartition(".")[0] for weight in setup.weights if weight.trained}
        idle = [
            name
            for name in setup.modules
            if name not in ran and name in weights and _place(name) in roles
        ]
        if idle:
            peer = roles[_place(idle[0])]
            says = f"was not computed in {history.pushed} steps{_more(idle)}, that of {peer!r} was"
            routed = (n.removeprefix(LOAD) for n in history.scalars if n.startswith(LOAD))
            is_expert = "expert" in idle[0].lower() or any(
                idle[0].startswith(f"{name}.") for name in routed
            )
            yield self.about(
                (idle[0], "output"),
                record.step,
                record.rank,
                says,
                len(idle),
                severity="warning" if is_expert else "note",
                advice="balance the router: a loss for equal loads, or noise" * is_expert,
            )

    def _left_out(self, record: StepRecord, setup: Setup, history: History) -> Iterator[Alert]:
        trained = [w for w in setup.weights if w.trained]
        left = [w.name for w in trained if w.group is None]
        names = [n for n in left if history.knows((n.rpartition(".")[0], "grad_output"))]
        if not names or not setup.groups:
            return
        severity: Severity = "warning" if len(left) <= len(trained) / 2 else "note"
        says = f"is in no optimizer{_more(names)}, though it requires a gradient"
        if len(left) == len(trained):
            values = sum(math.prod(w.shape) for w in trained)
            if sum(group.values for group in setup.groups) == values:
                return  # it trains copies in other bits
            says, severity = f"{says}: the optimizer has no parameter of this model", "error"
        yield self._about((names[0], "param"), record, says, names, severity)

    def _frozen(self, record: StepRecord, setup: Setup) -> Iterator[Alert]:
        first_trained: dict[str, int] = {}
        last_trained: dict[str, int] = {}
        for i, weight in enumerate(setup.weights):
            if weight.trained:
                first_trained.setdefault(role(weight.name), i)
                last_trained[role(weight.name)] = i
        frozen = [(i, role(w.name), w.name) for i, w in enumerate(setup.weights) if not w.trained]
        among = [
            name for i, of, name in frozen if first_trained.get(of, i) < i < last_trained.get(of, i)
        ]
        if among:
            says = (
                f"requires no gradient{_more(among)}, though its peers before and after it are "
                "trained"
            )
            yield self._about((among[0], "param"), record, says, among)
        elif frozen and first_trained:
            names = [name for _, _, name in frozen]
            says = f"requires no gradient{_more(names)}"
            yield self._about((names[0], "param"), record, says, names, "note")

    def _without_gradient(
        self, record: StepRecord, setup: Setup, history: History
    ) -> Iterator[Alert]:
        keys = set(record)
        if not any(kind == "param_grad" for _, kind in keys):
            return
        names = [
            w.name
            for w in setup.weights
            if w.trained
            and (w.group is not None or not setup.groups)
            and not history.knows((w.name, "param_grad"))
            and history.knows((w.name.rpartition(".")[0], "output"))
            and w.name not in history.unread
        ]
        if names:
            every = [w.name for w in setup.weights]
            got = {name for name in every if history.knows((name, "param_grad"))}
            is_unused = _in_last_blocks(every, got).issuperset(names)
            says = f"never came{_more(names)}, though its module was called"
            severity: Severity = "note" if is_unused else "warning"
            yield self._about((names[0], "param_grad"), record, says, names, severity)


def _in_last_blocks(names: Iterable[str], got: Collection[str]) -> set[str]:
    """The parameters of the last of several blocks of which earlier ones `got` a gradient, as did
    others of the last block: what this gives beside its main output, nothing takes.

    names: of all parameters, in the order of the model.
    """
    alive = {block for name in got for block, _ in numbered(name)}
    return {
        blocks[-1] + rest
        for (_, rest), blocks in _copies(names).items()
        if blocks[-1] in alive and any(block + rest in got for block in blocks[:-1])
    }


def _more(names: Sequence[str]) -> str:
    """How many more there are, as part of a sentence."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
