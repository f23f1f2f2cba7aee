"""costs(): the loop of a kernel that reads the tensor, and the shortest way through it."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bench.cuda.sass.listing import Instruction, Kernel
from bench.cuda.tune.policy import read

TERNARY = ("VHMNMX", "FMNMX3")
"""The minimum or maximum of three words."""
SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of an element."""


def in_flight() -> int:
    """How many loads a thread has under way, 16 bytes each or as many bytes in smaller ones."""
    return read().code.in_flight


class Cost(NamedTuple):
    """What one pass of a kernel's loop takes for an element."""

    instructions: float
    by_pipe: dict[str, float]
    local: float
    """Loads from local memory and stores to it, of the instructions."""


class Done(NamedTuple):
    """What a way through a loop does, as far as it can be told from its instructions."""

    loads: int
    """Of whole vectors."""
    counts: int
    """Additions to counters in shared memory."""
    compared: int
    """Minima and maxima: two a word, whether it has one element or two."""
    sums: int
    """Additions, plain and fused. Of each element four: the difference, its square, two sums.

    The first ones, to zero, are none. The zeros of fp32 are a fifth; those of two elements are
    counted by masks.
    """

    @classmethod
    def by(cls, body: Iterable[Instruction]) -> Done | None:
        """What `body` does; None where it has something rare."""
        loads = counts = compared = sums = 0
        for each in body:
            if each.is_rare:
                return None
            loads += each.reads_vector
            counts += each.mnemonic == "ATOMS"
            compared += 2 if each.mnemonic in TERNARY else each.mnemonic in ("FMNMX", "HMNMX2")
            sums += each.mnemonic in ("FADD", "FFMA")
        return cls(loads, counts, compared, sums)

    def after(self, body: Done, asked: Done) -> Done:
        """What is done after `body`, too."""
        compared = min(self.compared + body.compared, asked.compared)
        sums = min(self.sums + body.sums, asked.sums)
        return Done(self.loads + body.loads, self.counts + body.counts, compared, sums)


class Flow:
    """The blocks of a function: from where to where, and which may follow."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = instructions
        index = {each.address: i for i, each in enumerate(instructions)}
        starts = {0}
        for i, each in enumerate(instructions):
            if each.target is not None:
                starts.add(index[each.target])
            if each.target is not None or each.mnemonic in ("EXIT", "RET", "BRX"):
                starts.add(i + 1)
        ordered = sorted(start for start in starts if start < len(instructions))
        ends = [*ordered[1:], len(instructions)]
        self.blocks = dict(zip(ordered, ends, strict=True))
        self._index = index
        self._done = {start: Done.by(instructions[start:end]) for start, end in self.blocks.items()}

    def followers(self, start: int) -> Iterator[int]:
        """The blocks that may follow the one from `start` on."""
        end = self.blocks[start]
        last = self.instructions[end - 1]
        if last.mnemonic in ("EXIT", "RET", "BRX"):
            return
        if last.target is None:
            yield end
            return
        if last.is_conditional or ".DIV" in last.text:
            yield end
        if ".DIV" not in last.text:
            yield self._index[last.target]

    def loops(self) -> Iterator[tuple[int, int]]:
        """First and last instruction of each stretch that a branch repeats."""
        for i, each in enumerate(self.instructions):
            if each.target is not None and each.target <= each.address:
                yield self._index[each.target], i

    def repeats(self, first: int) -> set[tuple[int, int]]:
        """The branches, from block to block, that repeat a loop within what follows `first`."""
        found, entered, left = set(), {first}, set[int]()
        path = [(first, self.followers(first))]
        while path:
            start, following = path[-1]
            if (to := next(following, None)) is None:
                left.add(start)
                path.pop()
            elif to not in entered:
                entered.add(to)
                path.append((to, self.followers(to)))
            elif to not in left:
                found.add((start, to))
        return found

    def shortest(self, first: int, last: int, asked: Done) -> list[Instruction] | None:
        """The shortest way from `first` to `last`, in blocks, that does all that is asked.

        Calls and additions to memory are for what is rare: no way leads through them. Nor does one
        repeat a loop: what all data have to go through is unrolled, and to count twice in a loop is
        not to count in both histograms.
        """
        goal = next(start for start, end in self.blocks.items() if start <= last < end)
        repeats = self.repeats(first)
        begin = first, Done(0, 0, 0, 0)
        best = {begin: 0}
        before: dict[tuple[int, Done], tuple[int, Done]] = {}
        queue = [(0, *begin)]
        while queue:
            length, start, done = heapq.heappop(queue)
            body = self._done[start]
            if best[start, done] < length or body is None:
                continue
            so_far = done.after(body, asked)
            if so_far.loads > asked.loads or so_far.counts > asked.counts:
                continue
            if start == goal:
                if so_far == asked:
                    return self._way((start, done), before)
                continue
            for following in self.followers(start):
                if (start, following) in repeats:
                    continue
                key = following, so_far
                further = length + self.blocks[start] - start
                if first <= following <= goal and further < best.get(key, sys.maxsize):
                    best[key] = further
                    before[key] = start, done
                    heapq.heappush(queue, (best[key], *key))
        return None

    def _way(
        self, state: tuple[int, Done], before: dict[tuple[int, Done], tuple[int, Done]]
    ) -> list[Instruction]:
        starts = [state[0]]
        while state in before:
            state = before[state]
            starts.append(state[0])
        return [
            each
            for start in reversed(starts)
            for each in self.instructions[start : self.blocks[start]]
        ]


def divides(instructions: Iterable[Instruction]) -> bool:
    """Whether it divides in float64."""
    return any("RCP64H" in each.text for each in instructions)


def loads_in(instructions: Sequence[Instruction], first: int, last: int) -> int:
    """How many instructions load whole vectors."""
    return sum(each.reads_vector for each in instructions[first : last + 1])


def costs(kernel: Kernel) -> dict[str, Cost]:
    """By what is counted, the cost of an element; empty where no loop reads whole vectors."""
    flow, every = Flow(kernel.instructions), kernel.instructions
    # Loops that divide in float64 merge partial results.
    loops = [loop for loop in flow.loops() if not divides(every[loop[0] : loop[1] + 1])]
    size = SIZES[kernel.dtype]
    loads = in_flight() * (1 if kernel.agent == "runs" else 4 // size)
    # The innermost loops with all the loads that are under way at a time.
    reading = [loop for loop in loops if loads_in(every, *loop) >= loads]
    reading = [
        (first, last)
        for first, last in reading
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in reading)
    ]
    elements = loads * (16 if kernel.agent == "runs" else 4 * size) // size
    found = {}
    asked = {"moments": 0}
    if kernel.flags[0] == "true":
        asked = {"and samples": 0, "and one histogram": elements, "and both": 2 * elements}
    for what, counts in asked.items():
        sums = 5 if size == 4 else 4
        done = Done(loads, counts, 2 * elements * size // 4, sums * (elements - 1))
        ways = [way for loop in reading if (way := flow.shortest(*loop, done)) is not None]
        if ways:
            way = min(ways, key=len)
            pipes = Counter(each.pipe for each in way)
            by_pipe = {pipe: n / elements for pipe, n in sorted(pipes.items())}
            local = sum(each.is_local for each in way) / elements
            found[what] = Cost(len(way) / elements, by_pipe, local)
    return found
