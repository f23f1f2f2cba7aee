"""The page of a long run, 600 tensors x 2000 steps: the CPU time of writing it, beside that of
reading the same columns alone; and in a browser the first paint and a move of the cursor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from support.browser import chromium, screen

from bench.measure import Measured, Table, measure
from bench.show.recorded import record
from bench.smoke import pick
from bench.turns import Peer, Rounds

resource = pytest.importorskip("resource", reason="CPU time of children is known on POSIX alone")

TENSORS, STEPS, CHANNELS = pick(600, 12), pick(2000, 20), 16
ROUNDS = pick(3, 1)
MOST_BYTES = 4_000_000

READ = """
import sys
from hookstats.runs.run import open_run
from hookstats.runs.format import STATISTICS
run = open_run(sys.argv[1])
for table in run.batches(["step", "site", "kind", "channels", "observed", "dead", *STATISTICS]):
    pass
"""


class Command:
    """An interpreter with some arguments; a round is the CPU time of one process."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def prepare(self) -> None:
        """Nothing: each round is a new process."""

    def run(self) -> float:
        """Seconds of CPU, of the user and of the system."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *self._arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        user = after.ru_utime - before.ru_utime
        return float(user + after.ru_stime - before.ru_stime)

    def check(self) -> None:
        """A failed command has raised."""


class Report(Command):
    """`hookstats report`."""

    def __init__(self, run: Path, out: Path) -> None:
        super().__init__("-m", "hookstats", "report", str(run), "-o", str(out))
        self._out = out

    def check(self) -> None:
        """Assert that the page is there, and no larger than it may be."""
        assert 100_000 < self._out.stat().st_size <= MOST_BYTES


class Opened:
    """The page in a browser; a round is the time until it has painted the heatmap ("first"), or
    until everything is there ("whole")."""

    def __init__(self, browser: Any, page: Path, until: str = "whole") -> None:
        self.browser = browser
        self._page = page
        self._until = until

    def prepare(self) -> None:
        """Leave the page of the round before."""
        self.browser.get("about:blank")

    def run(self) -> float:
        """Seconds from the request to then, as the page says."""
        self.browser.get(self._page.as_uri())
        done = "return document.getElementById('main').dataset"
        while "whole" not in (said := self.browser.execute_script(done)):
            pass
        return float(said[self._until]) / 1e3

    def check(self) -> None:
        """Assert that the page shows all there is."""
        data = self.browser.execute_script(
            "return document.querySelector('#heatmap canvas').dataset.columns"
        )
        assert int(data) == STEPS


KEY = "document.getElementById('heatmap').dispatchEvent(new KeyboardEvent('keydown', {key: %s}))"
CHANGE = "(at => { %s; at.dispatchEvent(new Event('change')); })(document.getElementById('%s'))"
REDRAWS = {
    "moving the cursor": KEY % "i % 2 ? 'ArrowLeft' : 'ArrowDown', bubbles: true",
    "another statistic": CHANGE % ("at.selectedIndex = i % at.options.length", "statistic"),
    "against the median": CHANGE % ("at.checked = i % 2 === 1", "relative"),
}
"""What is done to the page, the i-th time."""


class Drawn(Opened):
    """The same, a round is the slowest of ten times that the page is drawn anew."""

    def __init__(self, browser: Any, page: Path, action: str) -> None:
        super().__init__(browser, page)
        self._script = f"""
            const took = [];
            for (let i = 0; i < 10; i++) {{
              {action};
              took.push(Number(document.getElementById("main").dataset.drawn));
            }}
            return Math.max(...took);
        """

    def prepare(self) -> None:
        """Open the page, and wait until it has found what may be chosen next."""
        super().prepare()
        super().run()
        while not self.browser.execute_script(
            "return document.getElementById('main').dataset.ready"
        ):
            pass

    def run(self) -> float:
        """Seconds of the slowest."""
        return float(self.browser.execute_script(self._script)) / 1e3


WRITTEN = Table(
    "the page of a long run, CPU time",
    "s",
    1.0,
    floor="reading its columns",
)
SHOWN = Table(
    "the page of a long run in a browser",
    "ms",
    1e3,
    floor="moving the cursor",
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and where its page is to be."""
    scratch = tmp_path_factory.mktemp("page")
    record(scratch / "run", TENSORS, STEPS, CHANNELS)
    return scratch / "run", scratch / "page.html"


@pytest.fixture(scope="module")
def written(files: tuple[Path, Path]) -> Measured:
    peers: dict[str, Callable[[], Peer]] = {
        "report": partial(Report, *files),
        "reading its columns": partial(Command, "-c", READ, str(files[0])),
    }
    name = f"{TENSORS} tensors of {CHANNELS} channels x {STEPS} steps"
    return measure(WRITTEN, name, 1, peers, Rounds(0, ROUNDS))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        screen(driver, 1400, 900)
        yield driver


@pytest.fixture(scope="module")
def shown(written: Measured, files: tuple[Path, Path], browser: Any) -> Measured:
    peers: dict[str, Callable[[], Peer]] = {
        "first paint": partial(Opened, browser, files[1], "first"),
        "everything": partial(Opened, browser, files[1]),
    }
    peers |= {name: partial(Drawn, browser, files[1], action) for name, action in REDRAWS.items()}
    return measure(SHOWN, written.case.name, 1, peers, Rounds(1, ROUNDS))


@pytest.mark.parametrize("peer", ["report", "reading its columns"])
def test_writing(peer: str, written: Measured, benchmark: BenchmarkFixture) -> None:
    written.verify(peer, benchmark)


@pytest.mark.parametrize("peer", ["first paint", "everything", *REDRAWS])
def test_showing(peer: str, shown: Measured, benchmark: BenchmarkFixture) -> None:
    shown.verify(peer, benchmark)
