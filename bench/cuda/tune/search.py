"""Search: from policy to policy, by points that a device measures or an earlier run has measured.

What is decided follows from the points alone, so a search that was cut off goes the same way again,
up to where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import median
from typing import NamedTuple, Protocol

from bench.cuda.tune.cases import Case
from bench.cuda.tune.ledger import AGAIN, Key, Ledger, Measured
from bench.cuda.tune.policy import AXES, Code, Compiled, Plan, Policy

GAIN = 0.99
"""A policy that is taken needs at most this much of the other's time, on the mean over the cases
that it changes: less is noise."""
WORST = 1.05
"""Of the default's time, the most that it may need in any case."""
HOPELESS = 1.08
"""A policy that needs so much on the mean over its first `FEW` cases is measured no further."""
FEW = 12
MOST_CRASHES = 2
"""Of a policy: more, and it is not taken."""
TURNS = (1, 2, 3)
"""In which the policy that is found and the default are measured again, one after the other."""

OUT_OF_TIME = 2
"""The exit code of a run that another one has to go on with."""


class Device(Protocol):
    """What measures."""

    def plan(self, compiled: Compiled, case: Case, plan: Plan) -> str:
        """What a plan launches."""

    def time(self, compiled: Compiled, case: Case, plan: Plan) -> Measured:
        """How long that takes."""


class OutOfTimeError(Exception):
    """There is no time for another point."""


class WrongError(Exception):
    """A result differs from what one element a thread gives."""


class BrokenError(Exception):
    """The kernels as they are give a wrong result, or crash: nothing can be compared with them."""


class Compared(NamedTuple):
    """A policy's time as a part of another's, in each case that differs between them."""

    ratios: dict[Case, float]
    refused: str = ""
    """Why the policy is not taken, if it isn't."""

    @property
    def mean(self) -> float:
        """The geometric mean; 1 without cases."""
        return exp(self.gain / len(self.ratios)) if self.ratios else 1.0

    @property
    def gain(self) -> float:
        """The sum of the logarithms, by which policies that change other cases are compared."""
        return sum(map(log, self.ratios.values()))

    @property
    def worst(self) -> tuple[float, str]:
        """The greatest ratio, and where it is."""
        return max(((ratio, case.name) for case, ratio in self.ratios.items()), default=(1.0, "-"))


class Found(NamedTuple):
    """What a search came to."""

    policy: Policy
    compared: Compared
    """The policy that was found with the default, in turns."""
    notes: list[str]

    @property
    def is_taken(self) -> bool:
        return not self.compared.refused and bool(self.compared.ratios)


class Search:
    """A coordinate descent: the compiled numbers, then those of plans, one after another."""

    def __init__(
        self,
        device: Device,
        ledger: Ledger,
        default: Policy,
        cases: Sequence[Case],
        codes: Sequence[Code],
        left: Callable[[], float],
    ) -> None:
        """left: seconds; no point is begun when none is left."""
        self.notes: list[str] = []
        """What was refused, and why."""
        self._device, self._ledger, self._default = device, ledger, default
        self._cases = list(cases)
        self._core = [case for case in cases if case.megabytes == 32] or self._cases
        self._codes = [default.code, *(code for code in codes if code != default.code)]
        self._left = left
        self._plans: dict[tuple[Compiled, Case, Plan], str] = {}

    def run(self) -> Found:
        """The policy to take.

        Raises:
            OutOfTimeError: another run with the same ledger goes on.
            BrokenError: the default itself gives a wrong result, or crashes again and again.
        """
        self._measure_default()
        best = self._default
        for _ in range(2):
            before = best
            best = self._best_plan(self._best_code(best))
            if best == before:
                break
        return self._in_turns(best)

    def _measure_default(self) -> None:
        crashes = 0
        for case in self._cases:
            try:
                crashes += self._seconds(self._default, case) is None
            except WrongError as error:
                raise BrokenError(f"a wrong result: {error}") from None
            if crashes > MOST_CRASHES:
                raise BrokenError(f"{crashes} crashes, the last on {case.name}")

    def _plan(self, policy: Policy, case: Case) -> str:
        asked = policy.code.of(case.agent), case, policy.plan
        if asked not in self._plans:
            self._plans[asked] = self._ledger.plan(*asked) or self._device.plan(*asked)
        return self._plans[asked]

    def _key(self, policy: Policy, case: Case, turn: int = 0) -> Key:
        return Key(policy.code.of(case.agent), case, self._plan(policy, case), turn)

    def _seconds(self, policy: Policy, case: Case, turn: int = 0) -> float | None:
        key = self._key(policy, case, turn)
        found = self._ledger.find(key)
        if found is None:
            if self._left() <= 0:
                raise OutOfTimeError
            found = self._device.time(key.compiled, case, policy.plan)
            self._ledger.add(key, policy.plan, found)
        if found.status == "wrong":
            raise WrongError(f"{case.name}: {found.text}")
        return found.seconds

    def _compare(self, policy: Policy, base: Policy, cases: Iterable[Case]) -> Compared:
        """A policy with one that was measured in the same cases, and with the default's bound."""
        ratios: dict[Case, float] = {}
        crashes = 0
        for case in cases:
            if self._key(policy, case) == self._key(base, case):
                continue
            before, at_first = self._seconds(base, case), self._seconds(self._default, case)
            try:
                seconds = self._seconds(policy, case)
                if seconds is not None and at_first is not None and seconds / at_first > WORST:
                    seconds = min(seconds, self._seconds(policy, case, AGAIN) or seconds)
            except WrongError as error:
                return Compared(ratios, f"a wrong result: {error}")
            crashes += seconds is None
            if crashes > MOST_CRASHES:
                return Compared(ratios, f"{crashes} crashes, the last on {case.name}")
            if seconds is None or before is None or at_first is None:
                continue
            ratios[case] = seconds / before
            so_far = Compared(ratios)
            if len(ratios) == FEW and so_far.mean > HOPELESS:
                return Compared(ratios, f"{so_far.mean:.2f} of the time")
            if seconds / at_first > WORST:
                return Compared(ratios, f"{seconds / at_first:.2f} of the default's on {case.name}")
        return Compared(ratios)

    def _note(self, what: str, compared: Compared) -> None:
        # What was too slow is in the file; what is broken has to be seen.
        if "wrong" in compared.refused or "crash" in compared.refused:
            note = f"{what}: refused: {compared.refused}"
            if note not in self.notes:
                self.notes.append(note)

    def _best_code(self, best: Policy) -> Policy:
        """Each agent's registers by themselves, for each block and number of loads in flight."""
        found: dict[Compiled, Compared] = {}
        for code in self._codes:
            for agent in ("runs", "columns"):
                if code.of(agent) not in found:
                    cases = (case for case in self._core if case.agent == agent)
                    compared = self._compare(best._replace(code=code), best, cases)
                    found[code.of(agent)] = compared
                    self._note(f"kernels {code.of(agent)}", compared)
        chosen, least = best, 0.0
        for block, in_flight in dict.fromkeys((code.block, code.in_flight) for code in self._codes):
            agents = []
            for agent in ("runs", "columns"):
                mine = best.code.of(agent)
                fit = [
                    (compared.gain, compiled != mine, compiled.blocks, compared)
                    for compiled, compared in found.items()
                    if compiled[:3] == (agent, block, in_flight) and not compared.refused
                ]
                agents.append(min(fit, key=lambda each: each[:3], default=None))
            runs, columns = agents
            if runs is None or columns is None:
                continue
            both = Compared(runs[-1].ratios | columns[-1].ratios)
            if both.gain < least and both.mean <= GAIN:
                least = both.gain
                code = Code(block, in_flight, runs[2], columns[2])
                chosen = best._replace(code=code)
        return self._with_all_cases(chosen, best)

    def _with_all_cases(self, chosen: Policy, best: Policy) -> Policy:
        """What the core cases chose, if all cases agree."""
        if chosen == best:
            return best
        compared = self._compare(chosen, best, self._cases)
        self._note(f"{chosen.code}", compared)
        return best if compared.refused or compared.mean > GAIN else chosen

    def _best_plan(self, best: Policy) -> Policy:
        for name, values in AXES.items():
            chosen, least = best, 0.0
            for value in values:
                tried = best._replace(plan=best.plan._replace(**{name: value}))
                if tried == best:
                    continue
                compared = self._compare(tried, best, self._cases)
                self._note(f"{name} = {value}", compared)
                if not compared.refused and compared.mean <= GAIN and compared.gain < least:
                    chosen, least = tried, compared.gain
            best = chosen
        return best

    def _in_turns(self, policy: Policy) -> Found:
        """The policy beside the default, in which clocks and temperature had the same chance."""
        cases = [
            case
            for case in self._cases
            if self._key(policy, case) != self._key(self._default, case)
        ]
        ratios: dict[Case, list[float]] = {case: [] for case in cases}
        refused = ""
        for turn in TURNS:
            order = (self._default, policy) if turn % 2 else (policy, self._default)
            try:
                times = {
                    each: [self._seconds(each, case, turn) for case in cases] for each in order
                }
            except WrongError as error:
                refused = f"a wrong result in turns: {error}"
                break
            pairs = zip(cases, times[self._default], times[policy], strict=True)
            for case, before, after in pairs:
                if before is not None and after is not None:
                    ratios[case].append(after / before)
        compared = Compared({case: median(each) for case, each in ratios.items() if each})
        worst, where = compared.worst
        if not refused and worst > WORST:
            refused = f"in turns it takes {worst:.3f} of the default's time on {where}"
        elif not refused and compared.ratios and compared.mean > GAIN:
            refused = f"in turns it takes {compared.mean:.3f} of the default's time"
        found = Found(policy, compared._replace(refused=refused), self.notes)
        return found if found.is_taken else found._replace(policy=self._default)
