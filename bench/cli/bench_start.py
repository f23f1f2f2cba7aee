"""What the command line costs before it reads anything: the CPU time of help, version and a typo.

CPU time, not time by the clock: a command that starts reads hundreds of files, from a cache or not.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure import Measured, measure
from bench.measured import Results, Table
from bench.replay import replayed
from bench.smoke import pick
from bench.turns import Rounds

resource = pytest.importorskip("resource", reason="CPU time of children is known on POSIX alone")

pytestmark = replayed

ROUNDS = pick(15, 1)


class Command:
    """An interpreter with some arguments; a round is the CPU time of one process."""

    def __init__(self, arguments: tuple[str, ...], code: int, says: str) -> None:
        self._arguments = arguments
        self._code = code
        self._says = says

    def prepare(self) -> None:
        """Nothing: each round is a new process."""

    def run(self) -> float:
        """Seconds of CPU, of the user and of the system."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._done = subprocess.run(
            [sys.executable, *self._arguments], capture_output=True, text=True, timeout=60
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        user = after.ru_utime - before.ru_utime
        return float(user + after.ru_stime - before.ru_stime)

    def check(self) -> None:
        """Assert that the last process did what it is measured for."""
        assert self._done.returncode == self._code, self._done.stderr
        assert self._says in self._done.stdout + self._done.stderr


CLI = ("-m", "hookstats")
PEERS = {
    "python": partial(Command, ("-c", "print('started')"), 0, "started"),
    "--help": partial(Command, (*CLI, "--help"), 0, "usage: hookstats"),
    "show --help": partial(Command, (*CLI, "show", "--help"), 0, "usage: hookstats show"),
    "--version": partial(Command, (*CLI, "--version"), 0, "hookstats "),
    "shwo": partial(Command, (*CLI, "shwo"), 2, "did you mean 'show'?"),
    "import torch": partial(Command, ("-c", "import torch; print(torch)"), 0, "torch"),
}
TABLE = Table(
    "starting the command line, CPU time",
    "ms",
    1e3,
    floor="python",
    ours=("--help", "show --help", "--version", "shwo"),
    parts={"import torch": "what every command cost that imported torch first"},
    by_peer=True,
)


@pytest.fixture(scope="module")
def case(results: Results) -> Measured:
    measured = measure(TABLE, "one process", 1, PEERS, Rounds(0, ROUNDS))
    results.cases.append(measured.case)
    return measured


@pytest.mark.parametrize("peer", PEERS)
def test_start(peer: str, case: Measured, benchmark: BenchmarkFixture) -> None:
    case.verify(peer, benchmark)
